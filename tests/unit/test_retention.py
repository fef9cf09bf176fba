"""The reconciler removes what ended long ago where a setting says so, a bounded share in each pass, and tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tandemq import ConfigurationError, NonRetryable, TandemQ
from tandemq.reconciler import Reconciler, retention
from tandemq.testing import run_until_idle

DAY = 86_400.0


@pytest.fixture
def app(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> TandemQ:
    """An app, and a healer's pass that removes at most four."""
    monkeypatch.setattr(retention, "BATCH", 2)
    monkeypatch.setattr(retention, "BATCHES", 2)

    @tandemq_app.task(name="add")
    def add() -> None:
        return None

    @tandemq_app.task(name="die")
    def die() -> None:
        raise NonRetryable("for good")

    return tandemq_app


def healer(app: TandemQ, **settings: Any) -> Reconciler:
    return Reconciler(
        app.store, app.broker, app.clock, Random(1), replace(app.settings, **settings), "holder", lead=False
    )


def run(app: TandemQ, count: int, name: str = "add", **options: Any) -> list[int]:
    ids = [app.enqueue(name, {}, **options).id for _ in range(count)]
    run_until_idle(app)
    return ids


def left(app: TandemQ, ids: list[int]) -> int:
    return sum(app.get(i) is not None for i in ids)


def test_nothing_goes_unless_a_setting_says_so(app: TandemQ) -> None:
    ids = [*run(app, 3), *run(app, 3, "die")]
    app.clock.sleep(1000 * DAY)
    assert healer(app).run_once().pruned == 0
    assert healer(app, retain_s=DAY).run_once().pruned == 3
    assert left(app, ids) == 3, "dead ones have a setting of their own"
    assert healer(app, retain_dead_s=DAY).run_once().pruned == 3


def test_each_pass_takes_its_share_and_writes_one_row(app: TandemQ) -> None:
    ids = run(app, 9)
    app.clock.sleep(DAY + 1)
    young = run(app, 2)
    reconciler = healer(app, retain_s=DAY)

    assert [reconciler.run_once().pruned for _ in range(4)] == [4, 4, 1, 0]
    assert (left(app, ids), left(app, young)) == (0, 2)
    assert app.stats()["ended"]["purged"] == 9
    records = app.audit().items
    assert [(r.action, r.n, r.who, r.reason) for r in records] == [
        ("prune", n, "reconciler holder", "retention") for n in (1, 4, 4)
    ]
    assert records[0].details["statuses"] == ["cancelled", "succeeded"]
    assert reconciler.last_report.to_json()["pruned"] == 0


def test_a_new_round_begins_a_minute_after_the_last_one(app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> None:
    reconciler = healer(app, retain_s=10)
    assert reconciler.run_once().pruned == 0
    run(app, 1)
    app.clock.sleep(retention.ROUND_S - 1)
    looked: list[int] = []
    prunable = app.store.prunable
    monkeypatch.setattr(app.store, "prunable", lambda *a, **k: looked.append(1) or prunable(*a, **k))
    assert (reconciler.run_once().pruned, looked) == (0, [])
    app.clock.sleep(2)
    assert reconciler.run_once().pruned == 1


def test_what_may_not_go_yet_does_not_keep_the_rest(app: TandemQ) -> None:
    """Keyed rows keep their key for a day, and stand at the front."""
    keyed = [app.enqueue("add", {}, idempotency_key=f"k{n}").id for n in range(9)]
    run_until_idle(app)
    app.clock.sleep(1)
    ids = run(app, 3)
    app.clock.sleep(60)
    reconciler = healer(app, retain_s=10)

    assert sum(reconciler.run_once().pruned for _ in range(4)) == 3
    assert (left(app, keyed), left(app, ids)) == (9, 0)
    assert sum(r.n for r in app.audit().items) == 3


def test_a_pass_that_removed_some_is_not_quiet(app: TandemQ) -> None:
    run(app, 1)
    app.clock.sleep(60)
    assert not healer(app, retain_s=10).run_once().quiet
    assert healer(app, retain_s=10).run_once().quiet


@pytest.mark.parametrize("name", ["retain_s", "retain_dead_s"])
@pytest.mark.parametrize("bad", [-1.0, float("nan"), 1e9])
def test_a_time_that_is_none_is_refused(tmp_path: Path, name: str, bad: float) -> None:
    with pytest.raises(ConfigurationError, match=f"TANDEMQ_{name.upper()}"):
        TandemQ(data_dir=str(tmp_path), **{name: bad})
