"""Dead letters as an app offers them: groups, export and import, purges that say who and why."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tandemq import Filter, InvalidTask, NonRetryable, TandemQ
from tandemq.acting import os_user
from tandemq.core import crash
from tandemq.testing import FakeClock, run_until_idle


@pytest.fixture
def app(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> TandemQ:
    """An app whose pages are of three tasks."""
    monkeypatch.setattr("tandemq.deadletters.PAGE", 3)
    monkeypatch.setattr("tandemq.deadletters.GROUP_PAGE", 3)

    @tandemq_app.task(name="die")
    def die(n: int, text: str = "number {} of 'x'") -> None:
        raise NonRetryable(text.format(n))

    return tandemq_app


def bury(app: TandemQ, count: int, name: str = "die", **options: Any) -> list[int]:
    ids = [app.enqueue(name, {"n": n}, **options).id for n in range(count)]
    run_until_idle(app)
    return ids


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# Groups


def test_groups_count_kinds_with_their_first_and_last(app: TandemQ, tandemq_clock: FakeClock) -> None:
    first = bury(app, 4)
    tandemq_clock.advance(60)
    bury(app, 1, queue="mail")
    app.enqueue("die", {"n": 1, "text": "no stock"})
    run_until_idle(app)

    groups = app.dead.group()

    kinds = [(g.error_type, g.kind, g.count) for g in groups.items]
    assert kinds == [("NonRetryable", "number N of '...'", 5), ("NonRetryable", "no stock", 1)]
    assert (groups.items[0].last_at - groups.items[0].first_at) == timedelta(minutes=1)
    assert groups.items[0].example_id not in first
    assert [(g.kind, g.count) for g in app.dead.group(by="queue").items] == [("default", 5), ("mail", 1)]
    assert [(g.kind, g.count) for g in app.dead.group(by="reason").items] == [("non_retryable", 6)]
    assert [(g.kind, g.count) for g in app.dead.group(by="type").items] == [("die", 6)]
    assert [g.count for g in app.dead.group(by="worker").items] == [6]
    assert app.dead.group(Filter(queue="mail")).total == 1
    assert app.dead.group(Filter(ids=tuple(first[:2])), by="queue").items[0].count == 2
    assert app.dead.group(Filter(payload={"n": 1})).total == 2
    assert app.dead.group(Filter(state="cancelled")).items == ()
    with pytest.raises(InvalidTask, match="grouped by error, type"):
        app.dead.group(by="color")


def test_groups_end_at_some_time_and_say_so(app: TandemQ) -> None:
    bury(app, 7)

    assert (app.dead.group(max_rows=6).total, app.dead.group(max_rows=6).capped) == (6, True)
    assert (app.dead.group(max_rows=9).total, app.dead.group(max_rows=9).capped) == (7, False)
    assert (app.dead.group(max_rows=7).total, app.dead.group(max_rows=7).capped) == (7, False)


# Export and import


def test_what_is_exported_can_be_imported_once(app: TandemQ) -> None:
    ids = bury(app, 7, queue="mail", priority=20, max_retries=5)
    shapes = [task.to_json() for task in app.dead.export()]
    assert sorted(s["id"] for s in shapes) == ids
    assert [len(s["attempts_log"]) for s in shapes] == [1] * 7
    app.dead.purge(where=Filter(state="dead"))

    assert app.dead.import_tasks(shapes, reason="again", who="ann") == (7, 0)
    assert app.dead.import_tasks(json.loads(json.dumps(shapes))) == (0, 7)

    new = app.admin.find(Filter(queue="mail", state="ready")).items
    assert sorted(json.loads(t.payload)["n"] for t in new) == list(range(7))
    assert {(t.task_type, t.priority, t.max_retries, t.attempts) for t in new} == {("die", 20, 5, 0)}
    imports = [r for r in app.audit().items if r.action == "import"]
    assert [(r.n, r.who, r.reason) for r in imports] == [(7, "ann", "again")]


def test_a_later_death_of_the_same_task_is_another_one(app: TandemQ, tandemq_clock: FakeClock) -> None:
    (task_id,) = bury(app, 1)
    first = [t.to_json() for t in app.dead.export()]
    tandemq_clock.advance(1)
    app.dead.replay([task_id])
    run_until_idle(app)
    second = [t.to_json() for t in app.dead.export()]

    assert app.dead.import_tasks([*first, *second, *second]) == (2, 1)


def test_a_task_keeps_the_key_that_it_had(app: TandemQ, tandemq_clock: FakeClock) -> None:
    (task_id,) = bury(app, 1, idempotency_key="order-1")
    shapes = [t.to_json() for t in app.dead.export()]
    assert app.dead.import_tasks(shapes) == (0, 1), "it is there, dead: replay it instead"
    tandemq_clock.advance(25 * 3600)
    assert app.dead.purge([task_id]) == (1, 0)

    assert app.dead.import_tasks(shapes) == (1, 0)
    assert app.admin.find(Filter(key="order-1")).items[0].state == "ready"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"status": "succeeded"}, "'succeeded' is not that of an exported dead letter"),
        ({"completed_at": None}, "'completed_at' is missing"),
        ({"completed_at": "yesterday"}, "completed_at"),
        ({"id": "7"}, "id must be an integer"),
        ({"payload": "not an object"}, "payload must be a JSON object"),
        ({"type": "no good type"}, "type"),
    ],
)
def test_what_is_no_exported_dead_letter_is_refused(app: TandemQ, change: dict[str, Any], says: str) -> None:
    bury(app, 1)
    (shape,) = (t.to_json() for t in app.dead.export())
    with pytest.raises(InvalidTask, match=says):
        app.dead.import_tasks([shape | change])
    with pytest.raises(InvalidTask, match="must be a JSON object"):
        app.dead.import_tasks([[shape]])  # type: ignore[list-item]


# Purging


def test_a_purge_says_who_and_why_in_the_audit_log(app: TandemQ) -> None:
    ids = bury(app, 5)
    app.dead.purge(ids[:1], reason="by hand", who="ann")
    app.dead.purge(where=Filter(task_type="die", payload={"n": 3}))
    assert app.dead.purge(where=Filter(task_type="die")) == (3, 0)

    records = app.audit().items[::-1]
    assert [(r.action, r.n, r.who, r.reason, r.task_id) for r in records[:2]] == [
        ("purge", 1, "ann", "by hand", ids[0]),
        ("purge", 1, os_user(), "", ids[3]),
    ]
    assert records[1].details == {"filter": {"task_type": "die", "payload": {"n": 3}}, "ids": [ids[3]]}
    assert sum(r.n for r in records) == 5
    assert [r.details["ids"] for r in app.audit(task_id=ids[4]).items] == [[ids[1], ids[2], ids[4]]]


def test_a_trial_changes_nothing_and_counts_what_would_go(app: TandemQ, tmp_path: Path) -> None:
    ids = bury(app, 5)
    bury(app, 1, idempotency_key="k")
    path = tmp_path / "a.ndjson"

    assert app.dead.purge(where=Filter(task_type="die"), dry_run=True, archive=path) == (5, 1)
    assert app.dead.purge([*ids, 999], dry_run=True) == (5, 1)
    assert not path.exists()
    assert (len(app.dead.search().items), app.audit().items) == (6, ())


def test_an_archive_holds_every_task_before_it_is_gone(
    app: TandemQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = bury(app, 7)
    path = tmp_path / "a.ndjson"
    purge, missing = app.store.purge, []

    def look(page: list[int], **options: Any) -> list[int]:
        missing.extend(set(page) - {line["id"] for line in lines(path)})
        return purge(page, **options)

    monkeypatch.setattr(app.store, "purge", look)
    assert app.dead.purge(where=Filter(state="dead"), archive=path) == (7, 0)

    assert missing == []
    assert sorted(line["id"] for line in lines(path)) == ids
    assert app.dead.import_tasks(lines(path)) == (7, 0)


def test_killed_between_archive_and_deletion_a_task_is_in_both(
    app: TandemQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = bury(app, 5)
    path = tmp_path / "a.ndjson"

    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    monkeypatch.setattr(crash, "_armed", None)
    crash.arm_call("purge.after_archive", die, 2)
    with pytest.raises(Killed):
        app.dead.purge(where=Filter(state="dead"), archive=path)
    in_file = [line["id"] for line in lines(path)]
    left = sorted(t.id for t in app.dead.search().items)
    assert sorted(set(in_file) | set(left)) == ids
    assert len(left) == 2

    assert app.dead.purge(where=Filter(state="dead"), archive=path) == (2, 0)
    assert sorted({line["id"] for line in lines(path)}) == ids
    assert app.dead.import_tasks(lines(path)) == (5, 2), "twice in the file, once in the queue"


def test_what_dies_again_while_a_purge_runs_stays(
    app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = bury(app, 2)
    purgeable = app.store.purgeable

    def meanwhile(page: list[int]) -> list[int]:
        tandemq_clock.advance(1)
        app.dead.replay([ids[0]])
        run_until_idle(app)
        return purgeable(page)

    monkeypatch.setattr(app.store, "purgeable", meanwhile)
    assert app.dead.purge(where=Filter(state="dead")) == (1, 1)
    assert [t.id for t in app.dead.search().items] == [ids[0]]


def test_a_cancel_says_who_and_why(app: TandemQ) -> None:
    one, two = (app.enqueue("die", {"n": 1}, delay=60) for _ in range(2))
    one.cancel(reason="customer left", who="ann")
    app.cancel(two.id)

    assert [(r.task_id, r.who, r.reason) for r in app.audit().items] == [
        (two.id, os_user(), ""),
        (one.id, "ann", "customer left"),
    ]


def test_a_filter_survives_json(app: TandemQ, tandemq_clock: FakeClock) -> None:
    where = Filter(
        queue="q",
        ids=(3, 4),
        payload={"a.b": [1, None]},
        ended_before=tandemq_clock.now(),
        ended_after=tandemq_clock.now() - timedelta(days=1),
    )
    assert Filter.from_json(json.loads(json.dumps(where.to_json()))) == where
    assert (Filter().narrows, Filter(reason="timeout").narrows) == (False, True)


@pytest.mark.parametrize("name", ["error_text", "error_type", "worker_id"])
def test_an_empty_text_is_not_every_task(tandemq_app: TandemQ, name: str) -> None:
    """A shell variable that was not set: ``dead purge --error "$MSG" --yes``."""
    where = Filter(**{name: ""})
    for attempt in (
        lambda: tandemq_app.dead.purge(where=where),
        lambda: tandemq_app.dead.search(where),
        lambda: tandemq_app.dead.replay(where=where),
    ):
        with pytest.raises(InvalidTask, match=f"{name} is empty"):
            attempt()
