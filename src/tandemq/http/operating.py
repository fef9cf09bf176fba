"""Operating on tasks: cancel, replay. Who does it (the caller's name) and why go into the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from tandemq.core import values
from tandemq.core.codec import write
from tandemq.core.errors import StoreRefused, Unavailable
from tandemq.core.task import Task
from tandemq.http import fields, filters
from tandemq.http.calls import Call, answer, answer_text, parse_id
from tandemq.http.fields import Check
from tandemq.http.problems import Problem, problem_of, unknown
from tandemq.replaying import Orders, Replayed, parse_edit, run_json
from tandemq.replaying.runner import PAGE
from tandemq.store.answers import Filter

MAX_IDS: Final = 1000
#: A replay that is slower than this would not end.
MIN_RATE, MAX_RATE = 0.0001, 1_000_000.0
MAX_LIMIT: Final = 1_000_000_000
MAX_CANARY: Final = 2**31 - 1
MAX_CANARY_WAIT_S: Final = 30 * 86_400.0
#: Items of a run that failed, of which it tells.
SHOWN_FAILURES: Final = 20

CANCEL: Final[Mapping[str, Check]] = {"reason": fields.reason}
REPLAY: Final[Mapping[str, Check]] = {
    "reason": fields.reason,
    "queue": values.queue_name,
    "priority": fields.priority,
    "edit": lambda value, field: parse_edit(_object(value, field)),
}
REPLAY_MANY: Final[Mapping[str, Check]] = {
    "rate": fields.either(
        fields.matching(fields.RATE_PATTERN, "a number a second, or a text like 50/s or 10/min"),
        fields.number(MIN_RATE, MAX_RATE),
    ),
    "limit": fields.whole(1, MAX_LIMIT),
    "canary": fields.either(
        fields.matching(fields.SAMPLE_PATTERN, "a count of at least 1, or a share like 1%"),
        fields.whole(1, MAX_CANARY),
    ),
    "stop_if_failing": fields.either(
        fields.matching(fields.SHARE_PATTERN, "a share like 20% or 0.2"), fields.number(0, 1)
    ),
    "canary_wait": fields.number(0, MAX_CANARY_WAIT_S),
    "queue": values.queue_name,
    "priority": fields.priority,
    "reason": fields.reason,
    "dry_run": fields.flag,
}


async def cancel_job(call: Call) -> Response:
    """200 cancelled (now or before), 202 requested (it runs: its worker is told), 409 it has ended otherwise."""
    call.query()
    app, task_id = call.api.app, call.task_id
    given = fields.given(fields.members(await call.json(), CANCEL), CANCEL)
    outcome = await app.acancel(task_id, reason=given.get("reason", ""), who=call.caller.name)
    if outcome not in {"cancelled", "requested"}:
        raise _wrong_state(task_id, outcome, "it cannot be cancelled any more")
    task = await _after(call, f"the task is {outcome}" if outcome == "cancelled" else "its worker is told to stop")
    text = await app.offload(lambda: write({"outcome": outcome, "job": task.to_json()}))
    return answer_text(text, 200 if outcome == "cancelled" else 202)


async def replay_job(call: Call) -> Response:
    """200 and the task, pending again; 409 if it is neither dead nor cancelled."""
    call.query()
    app, task_id = call.api.app, call.task_id
    given = fields.given(fields.members(await call.json(), REPLAY), REPLAY)
    done = await app.offload(app.dead.replay, [task_id], who=call.caller.name, **given)
    task = await _after(call, "the task was replayed" if done.moved else "the task was not replayed")
    if not done.moved:
        raise _not_replayed(task, done, is_edited="edit" in given)
    return await call.answer_task(task)


async def replay_dead(call: Call) -> Response:
    """200 and what was moved, for up to 500 ids without a pace; else 202 and a run, which a reconciler carries out."""
    call.query()
    body = await call.json()
    if isinstance(body, dict) and "edit" in body:
        text = "many are not edited here: POST /jobs/{id}/replay edits one, tandemq dead replay --edit does many"
        raise Problem("invalid", text, field="edit")
    body = fields.members(body, ("ids", "filter", *REPLAY_MANY))
    ids, where = _chosen(body)
    app, options = call.api.app, fields.given(body, REPLAY_MANY)
    options["who"] = call.caller.name
    is_trial = options.get("dry_run", False)
    is_run = ids is None or len(set(ids)) > PAGE or not Orders.of(options).is_plain  # type: ignore[arg-type]  # checked
    done = await app.offload(app.dead.replay, ids, where=where, detach=is_run and not is_trial, **options)
    if is_trial:
        return answer({"found": done.left, "kinds": [kind._asdict() for kind in done.kinds]})
    if done.run_id is None or not is_run:
        return answer(done.to_json())
    follow = f"/dead/replays/{done.run_id}"
    told = f"a worker's reconciler carries it out; see {follow}, or: tandemq dead replays show {done.run_id}"
    return answer(done.to_json() | {"follow": told}, 202, {"Location": follow})


async def show_replay(call: Call) -> Response:
    """One replay run: what it was told, how far it has come, and why tasks were not moved. 404."""
    call.query()
    return answer(await call.api.app.offload(_run, call, parse_id(call.request.path_params["id"], "id")))


def _run(call: Call, run_id: int) -> dict[str, Any]:
    replays = call.api.app.dead.replays
    run = replays.show(run_id)
    reasons = replays.result(run).to_json()["reasons"]
    failed = [item._asdict() for item in replays.items(run_id, "failed", limit=SHOWN_FAILURES)]
    return run_json(run) | {"reasons": reasons, "failed_items": failed}


def _chosen(body: Mapping[str, Any]) -> tuple[list[int] | None, Filter | None]:
    if ("ids" in body) == ("filter" in body):
        raise Problem("invalid", "give ids or filter, one of the two", field="ids")
    if "filter" in body:
        return None, filters.dead_filter(body["filter"], "filter")
    ids = body["ids"]
    if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_IDS:
        fields.refuse("ids", f"an array of 1 to {MAX_IDS} task ids", ids)
    return [parse_id(one, f"ids[{at}]") for at, one in enumerate(ids)], None


def _object(value: Any, field: str) -> Any:
    if not isinstance(value, dict):
        fields.refuse(field, "a JSON object", value)
    return value


def _wrong_state(task_id: int, state: str, what: str) -> Problem:
    return Problem("wrong-state", f"task {task_id} is {state}: {what}", task_id=task_id, task_state=state)


async def _after(call: Call, done: str) -> Task:
    """The task as it is now, for an answer that says what was done."""
    app = call.api.app
    try:
        return await app.offload(app.admin.show, call.task_id)
    except Unavailable:
        raise unknown(f"{done}, but the database went away before it could be shown: look at it later") from None


def _not_replayed(task: Task, done: Replayed, *, is_edited: bool) -> Problem:
    why = next((why for _, why in done.reasons), "")
    if done.failed and is_edited:
        return Problem("invalid", f"task {task.id} cannot be replayed with this edit: {why}", field="edit")
    if done.failed:
        return problem_of(StoreRefused(f"task {task.id} cannot be replayed: {why}"))
    if task.state in filters.ENDED_BADLY:
        return _wrong_state(task.id, task.state, f"it was not replayed: {why or 'it has just ended'}; try again")
    return _wrong_state(task.id, task.state, "only dead and cancelled tasks are replayed")
