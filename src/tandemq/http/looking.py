"""Looking at tasks: lists, one task, counts, dead letters. Nothing here changes anything."""

from __future__ import annotations

from starlette.responses import Response

from tandemq.http import filters
from tandemq.http.calls import Call, answer


async def list_jobs(call: Call) -> Response:
    """A page of tasks, newest first. It may be short, or empty, and go on: see ``store.answers.Page``."""
    given = filters.narrowed(call, filters.OF_JOBS)
    status, state = given.pop("status", None), given.get("state")
    if status is not None and state is not None and _status_of(state) != status:
        return filters.empty()  # no task is both
    where = filters.filter_of(given if state is not None or status is None else given | {"state": status})
    return await filters.listed(call, call.api.app.admin.find, where, given)


async def show_job(call: Call) -> Response:
    """One task with its failed attempts, or 404."""
    call.query()
    task = await call.api.app.offload(call.api.app.admin.show, call.task_id)
    return await call.answer_task(task)


async def stats(call: Call) -> Response:
    """Open tasks by queue and state, ended ones by outcome, ids in Redis (null while it is away), what is paused."""
    call.query()
    return answer(await call.api.app.offload(call.api.app.stats))


async def list_dead(call: Call) -> Response:
    """A page of dead letters, newest first; with ``state=cancelled`` of cancelled tasks."""
    given = filters.narrowed(call, filters.OF_DEAD)
    where = filters.filter_of(given)
    return await filters.listed(call, call.api.app.dead.search, where, given)


def _status_of(state: str) -> str:
    return "pending" if state in filters.PENDING_STATES else state
