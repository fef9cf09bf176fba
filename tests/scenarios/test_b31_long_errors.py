"""B31: error texts of any length and alphabet.

Required: a message or traceback of megabytes, and messages whose four-byte characters fall on every offset around the
limit, are stored shortened on a character border, with a mark at the end where something is missing. The attempt
counts, retry and death go their normal way, and no worker is hurt, with a strict sql_mode as without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core.failure import CUT_MARK, MAX_MESSAGE_BYTES, MAX_TRACEBACK_BYTES
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, assert_settled, sql
from tests.servers import MySQLServer
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

APP = "tests.apps.scenarios_b:app"
MODES = {
    "strict": "--sql-mode=STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO",
    "sloppy": "--sql-mode=",
}


@pytest.fixture
def work(
    own_mysql: Callable[..., MySQLServer],
    settings_for: Callable[..., Settings],
    redis_url: str,
    tmp_path: Path,
    probe: Probe,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    server = own_mysql(MODES[request.param])
    settings = settings_for(server.url(server.create_database()), redis_url, **CALM)
    with bench(settings, tmp_path, probe.environ) as made:
        yield made


def around_the_limit(char: str) -> list[str]:
    """Messages of this character that end just below, at and above the limit, shifted byte by byte."""
    width = len(char.encode())
    whole = MAX_MESSAGE_BYTES // width
    found = ["a" * head + char * (whole + more) for head in range(width + 1) for more in (-1, 0, 1)]
    cut_at = MAX_MESSAGE_BYTES - len(CUT_MARK.encode())
    reach = size(width, 3 * width)
    return found + ["a" * (cut_at - near) + char * 20 for near in range(reach)]


@pytest.mark.parametrize("work", list(MODES), indirect=True)
def test_messages_are_cut_on_a_character_border_with_a_mark(work: Bench, probe: Probe) -> None:
    messages = [text for char in ("🔥", "深", "é") for text in around_the_limit(char)]
    messages += ["x" * 5_000_000, "🔥" * 1_250_000, "\x00" * 9000, "\r\n\t\\'\"%s" * 2000, " " * 9000, ""]
    told = {
        work.app.enqueue("b.shout", {"text": text[:1], "times": len(text)}, max_retries=1).id: text
        for text in messages
        if len(set(text)) == 1
    }
    rest = [text for text in messages if len(set(text)) != 1]
    for text in rest:
        head = len(text) - len(text.lstrip("a"))
        body = text[head:]
        unit = body[:1] if len(set(body)) == 1 else "\r\n\t\\'\"%s"
        payload = {"text": unit, "times": len(body) // max(1, len(unit)), "head": head}
        told[work.app.enqueue("b.shout", payload, max_retries=1).id] = text
    work.worker("-c", "4", app=APP).ready()

    assert work.ended(list(told)) == {"dead": len(told)}

    for task_id, text in told.items():
        task = work.app.get(task_id)
        assert task is not None
        stored = task.last_error or ""
        raw = stored.encode()  # raises if it were no valid UTF-8
        assert (task.attempts, task.dead_reason, task.error_type) == (2, "retries_exhausted", "ValueError")
        assert [(a.attempt, a.outcome, a.error) for a in task.attempts_log] == [
            (1, "failed", stored),
            (2, "failed", stored),
        ]
        if not text:
            assert stored == "<ValueError without a message>"
        elif len(text.encode()) <= MAX_MESSAGE_BYTES:
            assert stored == text.replace("\x00", "?")
        else:
            assert stored.endswith(CUT_MARK)
            kept = stored.removesuffix(CUT_MARK)
            assert text.replace("\x00", "?").startswith(kept)
            assert MAX_MESSAGE_BYTES - 4 < len(raw) <= MAX_MESSAGE_BYTES
        assert probe.starts()[task_id] == 2
    bytes_stored = sql(work, "SELECT id, last_error, LENGTH(last_error) FROM {t}tasks")
    assert all(len((text or "").encode()) == length for _, text, length in bytes_stored)
    assert_settled(work, probe, told)


@pytest.mark.parametrize("work", list(MODES), indirect=True)
def test_a_traceback_of_megabytes_is_cut_and_its_task_goes_its_way(work: Bench, probe: Probe) -> None:
    deep = work.app.enqueue("b.deep", {"megabytes": 2}, max_retries=2)
    neighbours = work.ids("b.noop", 20)
    worker = work.worker("-c", "2", app=APP).ready()

    assert work.ended([deep.id, *neighbours]) == {"dead": 1, "succeeded": 20}

    task = work.app.get(deep.id)
    assert task is not None
    assert (task.attempts, task.dead_reason) == (3, "retries_exhausted")
    assert len(task.attempts_log) == 3
    for attempt in task.attempts_log:
        assert attempt.error.startswith("at the bottom: 深深")
        assert attempt.error.endswith(CUT_MARK)
        assert 'fall.py", line' in attempt.traceback
        assert attempt.traceback.endswith(CUT_MARK)
        assert MAX_TRACEBACK_BYTES - 4 < len(attempt.traceback.encode()) <= MAX_TRACEBACK_BYTES
    assert probe.starts()[deep.id] == 3
    assert len(worker.text()) < 200_000, "the log holds the whole traceback"
    assert_settled(work, probe, [deep.id, *neighbours])
