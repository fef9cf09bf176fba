"""A purge is killed between its archive and its deletion; the next one goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq import Filter
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.workers import ROOT, Bench, bench, environment


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url), tmp_path, probe.environ) as made:
        yield made


def test_the_operator_dies_between_the_archive_and_the_deletion_of_a_purge(work: Bench, tmp_path: Path) -> None:
    """What is gone is in the file; what is in the file only may be there still, and is written once more."""
    ids = [work.app.enqueue("noop", {"n": n}).id for n in range(4)]
    for task_id in ids:
        work.app.cancel(task_id)
    path = tmp_path / "gone.ndjson"
    purge = f"app.dead.purge(where=Filter(state='cancelled'), archive={str(path)!r}, reason='test data')"
    program = (
        f"import tandemq.deadletters as d; d.PAGE = 1; from tests.apps.work import app; Filter = d.Filter; {purge}"
    )
    died = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(work.settings, TANDEMQ_CRASH="purge.after_archive:3:kill9"),
        check=False,
    )
    assert died.returncode == -9
    left = [i for i in ids if work.app.get(i)]
    assert left == ids[2:]
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ids[:3]
    assert sum(record.n for record in work.app.audit().items if record.action == "purge") == 2

    assert work.app.dead.purge(where=Filter(state="cancelled"), archive=path).purged == 2
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [*ids[:3], *ids[2:]]
