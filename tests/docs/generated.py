"""The parts of pages that follow from the code. ``python -m tests.docs.generated`` writes them anew."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from tandemq.core.lifecycle import diagram
from tandemq.core.settings import Settings
from tandemq.http.problems import KINDS
from tandemq.http.routes import ROUTES
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


def routes_table() -> str:
    """Every route of the HTTP API and the roles that may use it."""
    lines = ["| | | roles |", "|---|---|---|"]
    for route in ROUTES:
        roles = "anybody" if route.roles is None else ", ".join(sorted(f"`{role.value}`" for role in route.roles))
        lines.append(f"| {route.method} | `{route.path}` | {roles} |")
    return "\n".join(lines)


#: What a client does about each kind of problem; one that is new must be added here, or its page is not made.
ADVICE = {
    "invalid": "mend the request; `field` says where",
    "unauthorized": "send a token that is neither revoked nor expired",
    "forbidden": "take a token with another role; `detail` names those that may",
    "not-found": "no such job, run or path; a job may have been purged",
    "method-not-allowed": "see the `Allow` header",
    "too-slow": "send it quicker, or on a better line",
    "key-conflict": "another key, or the request that the key belongs to; `task_id` is its job",
    "lease-lost": "stop working on the job, forget it",
    "wrong-state": "look at the job: it has ended, or has not ended, meanwhile",
    "too-large": "send less; `detail` says the limit",
    "target-too-long": "shorten path and query",
    "head-too-large": "send fewer and shorter headers",
    "unsupported-media-type": "say `Content-Type: application/json`, in a batch also `application/x-ndjson`",
    "too-many-requests": "wait as long as `Retry-After` says",
    "internal": "tell us; the log has the details under the number in `detail`",
    "unavailable": "wait as long as `Retry-After` says, then send the same",
    "unknown-outcome": "with an `idempotency_key` or a `lease_token` send the same; without, look before you do",
}


def problems_table() -> str:
    """Every kind of problem: status, type, title, what to do."""
    lines = ["| status | `urn:tandemq:problem:` | means | what to do |", "|---|---|---|---|"]
    for name, kind in sorted(KINDS.items(), key=lambda one: one[1].status):
        lines.append(f"| {kind.status} | `{name}` | {kind.title} | {ADVICE[name]} |")
    return "\n".join(lines)


def javascript_worker() -> str:
    """The example, whole."""
    return f"```js\n{(ROOT / 'examples' / 'http' / 'worker.mjs').read_text()}```"


#: (page, marker, what belongs between ``<!-- marker -->`` and ``<!-- /marker -->``)
PARTS: list[tuple[Path, str, Callable[[], str]]] = [
    (ROOT / "ARCHITECTURE.md", "diagram", state_diagram),
    (ROOT / "ARCHITECTURE.md", "layers", layers),
    (ROOT / "docs" / "configuration.md", "settings", settings_table),
    (ROOT / "docs" / "http.md", "routes", routes_table),
    (ROOT / "docs" / "http.md", "problems", problems_table),
    (ROOT / "docs" / "http.md", "worker.mjs", javascript_worker),
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
