"""The pure part: percentiles, medians over rounds, ratios, the table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tandemq.core.percentile import percentile as nearest_rank

#: name -> (heading, whether more is better)
FIGURES = {
    "drain": ("drain /s", True),
    "single": ("1 thread /s", True),
    "threads": ("32 at once /s", True),
    "bulk": ("bulk /s", True),
    "p50_ms": ("p50 ms", False),
    "p99_ms": ("p99 ms", False),
    "redis_bytes": ("Redis bytes/task", False),
    "disk_bytes": ("disk bytes/task", False),
    "cpu_single": ("CPU s/1000, single", False),
    "cpu_bulk": ("CPU s/1000, bulk", False),
}
BASE, CEILING = "tandemq", "ceiling"
Result = Mapping[str, float | None]
Results = Mapping[str, Result]


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest rank: the smallest value that at least ``q`` percent of the values do not exceed."""
    if not values:
        raise ValueError("no values")
    return nearest_rank(sorted(values), q / 100)


def medians(rounds: Sequence[Result]) -> dict[str, float | None]:
    """Per figure, over the rounds that have it."""
    out: dict[str, float | None] = {}
    for name in FIGURES:
        values = [value for one in rounds if (value := one.get(name)) is not None]
        out[name] = statistics.median(values) if values else None
    return out


def ratio(value: float | None, base: float | None) -> float | None:
    """``value`` as a multiple of ``base``."""
    return None if value is None or not base else value / base


def short(value: float | None) -> str:
    """Three significant digits; thousands in full."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(results: Results, base: str = BASE) -> str:
    """A Markdown table; beside each figure its multiple of the base's."""
    head = ["side", *(heading for heading, _ in FIGURES.values())]
    lines = [head, ["---"] * len(head)]
    for side, result in results.items():
        cells = [side]
        for name in FIGURES:
            value, times = result.get(name), ratio(result.get(name), results[base].get(name))
            show_ratio = side != base and times is not None
            cells.append(f"{short(value)} ({times:.2f}x)" if show_ratio else short(value))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def losses(results: Results, base: str = BASE) -> list[str]:
    """Every figure in which another side (the ceiling is none) is ahead of the base."""
    found = []
    for name, (heading, more_is_better) in FIGURES.items():
        mine = results[base].get(name)
        for side, result in results.items():
            theirs = result.get(name)
            if side in {base, CEILING} or mine is None or theirs is None:
                continue
            if (theirs > mine) if more_is_better else (theirs < mine):
                found.append(f"{heading}: {side} {short(theirs)}, {base} {short(mine)}")
    return found


def cheapest_cpu(result: Result) -> float | None:
    """CPU per 1,000 tasks by the cheapest way that the side has to enqueue."""
    values = [value for name in ("cpu_single", "cpu_bulk") if (value := result.get(name)) is not None]
    return min(values, default=None)


def peers(results: Results) -> dict[str, Result]:
    """All sides but tandemq and its ceiling."""
    return {side: result for side, result in results.items() if side not in {BASE, CEILING}}
