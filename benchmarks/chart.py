"""The results as one SVG of small bar charts: ``python -m benchmarks.chart RESULTS.json CHART.svg``.

Runs in the peers' interpreter, where pygal is. The same results give the same bytes: no ids, scripts or times in it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import BASE, CEILING, Result, Results, cheapest_cpu, ratio, short

WIDTH, COLUMNS = 560, 2
ROW, FRAME = 26, 70
COLOURS = {BASE: "#1b6ca8", CEILING: "#9bbfd9"}
PEER = "#b8b8b8"
#: figure -> title of its panel
PANELS = {
    "drain": "Drain, tasks a second",
    "single": "Enqueue, one thread, a second",
    "bulk": "Enqueue in bulk, tasks a second",
    "threads": "Enqueue, 32 at once, a second",
    "p50_ms": "Idle latency p50, ms (less is better)",
    "p99_ms": "Idle latency p99, ms (less is better)",
    "cpu": "CPU seconds per 1,000 tasks (less is better)",
    "redis_bytes": "Redis bytes per ready task (less is better)",
}


def bars(results: Results, figure: str) -> list[tuple[str, float, str]]:
    """Side, value and label, best side first; sides without the figure are left out."""

    def value_of(result: Result) -> float | None:
        return cheapest_cpu(result) if figure == "cpu" else result.get(figure)

    base = value_of(results[BASE])
    found = [(side, value) for side, result in results.items() if (value := value_of(result)) is not None]
    less_is_better = figure not in {"drain", "single", "bulk", "threads"}
    found.sort(key=lambda one: (one[1], one[0]), reverse=not less_is_better)
    out = []
    for side, value in found:
        times = ratio(value, base)
        label = short(value) if side == BASE or times is None else f"{short(value)} ({times:.2f}x)"
        out.append((side, value, f"{side}  {label}"))
    return out


def panel(title: str, found: list[tuple[str, float, str]]) -> str:
    """One bar chart as SVG."""
    import pygal
    from pygal.style import Style

    plain = "DejaVu Sans, Helvetica, Arial, sans-serif"
    style = Style(
        background="#ffffff",
        plot_background="#ffffff",
        font_family=plain,
        title_font_size=15,
        label_font_size=12,
        major_label_font_size=12,
        opacity="1",
        guide_stroke_color="#ffffff",
        major_guide_stroke_color="#ffffff",
    )
    chart = pygal.HorizontalBar(
        style=style,
        width=WIDTH,
        height=FRAME + ROW * len(found),
        title=title,
        show_legend=False,
        show_y_guides=False,
        show_x_guides=False,
        show_x_labels=False,
        js=(),
        no_prefix=True,
        disable_xml_declaration=True,
        spacing=4,
        margin=8,
        range=(0, max(value for _, value, _ in found)),
    )
    order = found[::-1]  # pygal draws from below
    chart.x_labels = [label for _, _, label in order]
    values: list[Mapping[str, Any]] = [{"value": value, "color": COLOURS.get(side, PEER)} for side, value, _ in order]
    chart.add("", values)
    return str(chart.render(is_unicode=True))


def compose(panels: list[str], caption: str) -> str:
    """Beside and below each other, in one SVG."""
    parts, y = [], 34
    for start in range(0, len(panels), COLUMNS):
        row = panels[start : start + COLUMNS]
        heights = []
        for column, one in enumerate(row):
            size = re.search(r'viewBox="0 0 (\d+) (\d+)"', one)
            width, height = (int(size[1]), int(size[2])) if size else (WIDTH, 200)
            place = f'<svg x="{column * WIDTH}" y="{y}" width="{width}" height="{height}" '
            parts.append(one.replace("<svg ", place, 1))
            heights.append(height)
        y += max(heights)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {y}">'
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    text = (
        f'<text x="12" y="22" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13">{caption}</text>'
    )
    return "\n".join([head, white, text, *parts, "</svg>", ""])


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    run = json.loads(source.read_text(encoding="utf-8"))
    about, results = run["about"], run["medians"]
    panels = [panel(title, found) for figure, title in PANELS.items() if (found := bars(results, figure))]
    of = f"commit {about['commit']}, median of {about['rounds']} round(s), driver {about.get('driver', 'pymysql')}"
    caption = f"tandemq benchmark, {about['date'][:10]}, {of}; in brackets: multiple of tandemq"
    target.write_text(compose(panels, caption), encoding="utf-8")


if __name__ == "__main__":
    main()
