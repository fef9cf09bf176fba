"""``POST /jobs``: requests that come together share one INSERT; each is answered after the commit of its row."""

from __future__ import annotations

from starlette.responses import Response

from tandemq.app import TandemQ
from tandemq.core import body
from tandemq.core.task import NewTask, Task
from tandemq.http.calls import Call, answer


class Enqueuer:
    """Stores tasks for all requests of this process."""

    def __init__(self, app: TandemQ) -> None:
        self._app = app

    async def enqueue(self, new: NewTask) -> tuple[Task, bool]:
        """The task as stored, and whether this call created it."""
        handle = (await self._app.aenqueue_many([new]))[0]
        task = await self._app.aget(handle.id)
        assert task is not None  # noqa: S101
        return task, handle.created

    async def stop(self) -> None:
        """Wait for what is under way."""


async def enqueue(call: Call) -> Response:
    """201 and the new task, 200 and the task that the key belongs to already, 409 if that is another one."""
    call.query()
    task, created = await call.api.enqueuer.enqueue(body.new_task(await call.json()))
    return answer(task.to_json(), 201 if created else 200, {"Location": f"/jobs/{task.id}"})
