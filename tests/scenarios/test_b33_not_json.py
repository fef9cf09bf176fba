"""B33: values that JSON cannot carry.

Required: in a payload they are refused when the task is enqueued, by a ValueError or TypeError that names the path to
the value; nothing is stored and no id reaches Redis. As a result they end the task all the same: succeeded, begun once,
with a note that says what could not be stored and where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tandemq import InvalidTask, NewTask
from tests.apps import scenarios_b
from tests.apps.scenarios_b import UNSTORABLE
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.truth import assert_settled, redis_ids, row_count
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

APP = "tests.apps.scenarios_b:app"


PLACES: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "top": lambda value: ({"price": value}, "payload.price"),
    "nested": lambda value: ({"items": [0, 1, {"price": value}]}, "payload.items[2].price"),
    "odd key": lambda value: ({"unit price": [[value]]}, "payload['unit price'][0][0]"),
}


def test_payloads_are_refused_by_the_path_of_the_value_and_nothing_is_stored(work: Bench) -> None:
    kept = work.ids("b.noop", 3)
    redis_before = redis_ids(work)
    for name, make in UNSTORABLE.items():
        for place, put in PLACES.items():
            payload, path = put(make())
            ways: list[Callable[[], Any]] = [
                lambda payload=payload: work.app.enqueue("b.echo", payload),
                lambda payload=payload: work.app.enqueue("b.echo", payload, idempotency_key="k", delay=5),
                lambda payload=payload: work.app.enqueue_many([NewTask("b.noop", {}), NewTask("b.echo", payload)]),
                lambda payload=payload: asyncio.run(work.app.aenqueue("b.echo", payload)),
            ]
            for way in ways:
                with pytest.raises((ValueError, TypeError)) as refused:
                    way()
                assert isinstance(refused.value, InvalidTask), (name, place)
                assert str(refused.value).startswith(f"{path} "), (name, place, str(refused.value))
                assert refused.value.field == path, (name, place)
    for payload in ({1: "one"}, {"a": {"\udfff": 1}}):
        with pytest.raises((ValueError, TypeError), match="payload"):
            work.app.enqueue("b.echo", payload)  # type: ignore[dict-item]
    for payload in ([1], "text", None, 5, b"{}"):
        with pytest.raises(TypeError, match="payload must be a JSON object"):
            work.app.enqueue("b.echo", payload)  # type: ignore[arg-type]
    assert row_count(work) == len(kept)
    assert redis_ids(work) == redis_before


def test_arguments_of_a_task_are_refused_by_their_names(work: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios_b.echo, "_producer", work.app.producer)
    with pytest.raises(TypeError, match=r"payload\.items\[0\]\.when is a datetime"):
        scenarios_b.echo.enqueue(items=[{"when": UNSTORABLE["datetime"]()}])
    with pytest.raises(ValueError, match=r"payload\.ratio is nan"):
        scenarios_b.echo.enqueue(ratio=float("nan"))
    assert row_count(work) == 0


def test_json_text_that_is_none_is_refused_by_the_command_line(work: Bench) -> None:
    for text, said in (('{"a": NaN}', "NaN"), ('{"a": [Infinity]}', "Infinity"), ('{"a": "\\ud800"}', "payload.a")):
        assert said in tandemq(work.settings, "enqueue", "b.echo", text, code=2).err
    line = '{"type": "b.echo", "payload": {"a": -Infinity}}\n'
    assert "Infinity" in tandemq(work.settings, "enqueue", "--file", "-", stdin=line, code=2).err
    assert row_count(work) == 0


def test_results_end_their_task_once_with_a_note(work: Bench, probe: Probe) -> None:
    flat = {work.app.enqueue("b.unstorable", {"which": name}).id: (name, "result") for name in UNSTORABLE}
    deep = {
        work.app.enqueue(kind, payload).id: (name, "result.items[2].price")
        for name in UNSTORABLE
        for kind, payload in (
            ("b.unstorable", {"which": name, "nested": True}),
            ("b.aunstorable", {"which": name}),
        )
    }
    fine = work.ids("b.noop", 20)
    told = flat | deep
    work.worker("-c", "4", app=APP).ready()

    assert work.ended([*told, *fine]) == {"succeeded": len(told) + len(fine)}

    for task_id, (name, path) in told.items():
        task = work.app.get(task_id)
        assert task is not None
        assert (task.result, task.attempts, task.error_type) == (None, 1, "ResultNotStorable"), name
        assert (task.last_error or "").startswith(f"result not storable: {path} "), (name, task.last_error)
    assert [work.app.store.ending(i)[1] for i in fine] == [str(n) for n in range(20)]
    probe.assert_once([*told, *fine])
    assert_settled(work, probe, [*told, *fine])
