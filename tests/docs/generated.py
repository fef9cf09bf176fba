"""The parts of pages that follow from the code. ``python -m tests.docs.generated`` writes them anew."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from tandemq.core.lifecycle import diagram
from tandemq.core.settings import Settings
from tests.servers import ROOT


def state_diagram() -> str:
    """The table of moves as a Mermaid diagram."""
    return f"```mermaid\n{diagram()}\n```"


def settings_table() -> str:
    """Every setting: variable, argument, default, meaning."""
    lines = ["| variable | argument | default | meaning |", "|---|---|---|---|"]
    for field in fields(Settings):
        default = f"`{int(field.default) if field.type == 'bool' else field.default}`" if field.default != "" else "-"
        lines.append(f"| `{field.metadata['var']}` | `{field.name}` | {default} | {field.metadata['help']} |")
    return "\n".join(lines)


def layers() -> str:
    """The layers that import-linter checks, topmost first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (found,) = (c["layers"] for c in contracts if c["type"] == "layers")
    return "\n".join(["```text", *found, "```"])


#: (page, marker, what belongs between ``<!-- marker -->`` and ``<!-- /marker -->``)
PARTS: list[tuple[Path, str, Callable[[], str]]] = [
    (ROOT / "ARCHITECTURE.md", "diagram", state_diagram),
    (ROOT / "ARCHITECTURE.md", "layers", layers),
    (ROOT / "docs" / "configuration.md", "settings", settings_table),
]


def _between(marker: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {marker} -->\n)(.*?)\n?(?=<!-- /{marker} -->)", re.DOTALL)


def written(page: Path, marker: str) -> str:
    """What the page holds there now."""
    found = _between(marker).search(page.read_text())
    assert found, f"{page.name} has no <!-- {marker} --> ... <!-- /{marker} -->"
    return found.group(1)


def main() -> None:
    """Write all parts."""
    for page, marker, make in PARTS:
        part = make()
        page.write_text(_between(marker).sub(lambda _, part=part: f"{part}\n", page.read_text()))


if __name__ == "__main__":
    main()
