"""The parts of pages that follow from the code. ``python -m tests.docs.generated`` writes them anew."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import click
import yaml

from tandemq import metrics
from tandemq.cli.entry import tandemq_command
from tandemq.core.lifecycle import diagram
from tandemq.core.settings import Settings
from tandemq.http.problems import KINDS
from tandemq.http.routes import ROUTES
from tandemq.monitoring.gauges import GAUGES
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


def _flags(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, str, click.Option]]:
    """(command, variable, option) of every flag of this command and of those below it."""
    for flag in command.params:
        if words and isinstance(flag, click.Option) and isinstance(flag.envvar, str):
            yield " ".join(words), flag.envvar, flag
    for name, below in getattr(command, "commands", {}).items():
        yield from _flags(below, (*words, name))


def flags_table() -> str:
    """Every variable that stands for a flag."""
    lines = ["| variable | command | flag | meaning |", "|---|---|---|---|"]
    for command, variable, flag in _flags(tandemq_command):
        shown = ", ".join(f"`{name}`" for name in flag.opts)
        meaning = " ".join((flag.help or "").split()).replace("|", "\\|")
        lines.append(f"| `{variable}` | `{command}` | {shown} | {meaning} |")
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


def _counted() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """(name, kind, text, labels) of what processes count. The library tells labels by no public name."""
    registry = metrics.registry()
    assert registry is not None
    found = []
    for collector in registry._collector_to_names:
        name = collector._name + ("_total" if collector._type == "counter" else "")
        found.append((name, collector._type, collector._documentation, tuple(collector._labelnames)))
    return found


def metric_names() -> set[str]:
    """The names of all series, as an expression has them."""
    names = {gauge.name + ("_total" if gauge.kind == "counter" else "") for gauge in GAUGES.values()}
    for name, kind, _, _ in _counted():
        names |= {name} if kind != "histogram" else {f"{name}{end}" for end in ("_bucket", "_sum", "_count")}
    return names


def metrics_table() -> str:
    """Every metric: name, labels, kind, scope, meaning."""
    rows = [(name, kind, "process", text, labels) for name, kind, text, labels in _counted()]
    for gauge in GAUGES.values():
        name = gauge.name + ("_total" if gauge.kind == "counter" else "")
        rows.append((name, gauge.kind, gauge.scope, gauge.text, gauge.labels))
    lines = ["| metric | labels | kind | of | meaning |", "|---|---|---|---|---|"]
    for name, kind, scope, text, labels in sorted(rows, key=lambda row: (row[2], row[0])):
        shown = ", ".join(f"`{label}`" for label in labels) or "-"
        lines.append(f"| `{name}` | {shown} | {kind} | {scope} | {text} |")
    return "\n".join(lines)


def alerts_table() -> str:
    """Every alert and what it says."""
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    lines = ["| alert | severity | after | what it means |", "|---|---|---|---|"]
    for rule in rules:
        means = rule["annotations"]["description"]
        lines.append(f"| `{rule['alert']}` | {rule['labels']['severity']} | {rule.get('for', '-')} | {means} |")
    return "\n".join(lines)


#: (page, marker, what belongs between ``<!-- marker -->`` and ``<!-- /marker -->``)
PARTS: list[tuple[Path, str, Callable[[], str]]] = [
    (ROOT / "ARCHITECTURE.md", "diagram", state_diagram),
    (ROOT / "ARCHITECTURE.md", "layers", layers),
    (ROOT / "docs" / "configuration.md", "settings", settings_table),
    (ROOT / "docs" / "configuration.md", "flags", flags_table),
    (ROOT / "docs" / "http.md", "routes", routes_table),
    (ROOT / "docs" / "http.md", "problems", problems_table),
    (ROOT / "docs" / "http.md", "worker.mjs", javascript_worker),
    (ROOT / "docs" / "monitoring.md", "metrics", metrics_table),
    (ROOT / "docs" / "monitoring.md", "alerts", alerts_table),
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
