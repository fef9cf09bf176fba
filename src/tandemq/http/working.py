"""What workers in any language do: claim, heartbeat, complete, fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tandemq.core import retryafter, values
from tandemq.core.codec import write
from tandemq.core.errors import StoreBusy, StoreUnknown
from tandemq.core.retry import MAX_DELAY_S
from tandemq.core.task import DEFAULT_QUEUE, Task
from tandemq.core.values import rfc3339
from tandemq.http import fields
from tandemq.http.calls import Call, Gone, answer, answer_text, no_content
from tandemq.http.fields import Check
from tandemq.http.problems import Problem, unknown
from tandemq.remote import Failed, Proof, Wanted
from tandemq.remote.terms import LONGEST_LEASE_S, MAX_JOBS, MAX_NAMES, SHORTEST_LEASE_S, lease_length

#: A body with a result that is too large to be kept is read all the same, up to here: the work is done.
LARGEST_COMPLETE: Final = 32 * 1024 * 1024
#: A row that an operator holds: the end of a task is tried so often, with such a pause.
LOCKED_TRIES, LOCKED_AGAIN_S = 10, 0.2


def _names(check: Check) -> Check:
    def checked(value: Any, field: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_NAMES:
            fields.refuse(field, f"an array of 1 to {MAX_NAMES} names", value)
        return tuple(dict.fromkeys(check(one, f"{field}[{at}]") for at, one in enumerate(value)))

    return checked


def _token(value: Any, field: str) -> str | int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        fields.refuse(field, "the lease_token of the claim", value)
    return value


def _any_text(value: Any, field: str) -> str:
    """Of any length: what is kept of it is cut."""
    if not isinstance(value, str):
        fields.refuse(field, "text", value)
    return value


def _retry_after(value: Any, field: str) -> Any:
    if not isinstance(value, str):
        return fields.number(0, MAX_DELAY_S)(value, field)
    try:
        return retryafter.wait(value, field)
    except ValueError as bad:
        raise Problem("invalid", str(bad)[:300], field=field) from None


CLAIM: Final[Mapping[str, Check]] = {
    "worker_id": fields.worker_id,
    "queues": _names(values.queue_name),
    "types": _names(values.task_type),
    "max": fields.whole(1, MAX_JOBS),
    "lease": fields.number(SHORTEST_LEASE_S, LONGEST_LEASE_S),
    "wait": fields.number(0, LONGEST_LEASE_S),  # and at most what the server allows
}
PROOF: Final[Mapping[str, Check]] = {"lease_token": _token, "worker_id": fields.worker_id}
HEARTBEAT: Final[Mapping[str, Check]] = {**PROOF, "lease": CLAIM["lease"]}
COMPLETE: Final[Mapping[str, Check]] = {**PROOF, "result": lambda value, _: value}
FAIL: Final[Mapping[str, Check]] = {
    **PROOF,
    "error": _any_text,
    "error_type": _any_text,
    "traceback": _any_text,
    "retryable": fields.flag,
    "retry_after": _retry_after,
}


async def claim(call: Call) -> Response:
    """200 and what was claimed, or 204 if nothing came within ``wait``.

    A client that has gone before its answer is sent holds nothing: its tasks are handed back at once.
    """
    call.query()
    wanted, wait_s = _wanted(call, fields.members(await call.json(), CLAIM))
    gone = asyncio.ensure_future(_disconnected(call.request))
    # A task of its own: when this request is cancelled it goes on, sees that nobody is there, and hands back.
    work = asyncio.ensure_future(_claimed(call, wanted, wait_s, gone))
    call.api.waiting_room.keep(work)
    try:
        return await asyncio.shield(work)
    finally:
        gone.cancel()


def _wanted(call: Call, body: Mapping[str, Any]) -> tuple[Wanted, float]:
    given = fields.given(body, CLAIM)
    if "worker_id" not in given:
        raise Problem("invalid", "worker_id is missing: say who claims", field="worker_id")
    wait_s = given.get("wait", 0.0)
    if wait_s > call.api.options.max_wait_s:
        fields.refuse("wait", f"a number from 0 to {call.api.options.max_wait_s:g}", wait_s)
    wanted = Wanted(
        worker_id=given["worker_id"],
        queues=given.get("queues", (DEFAULT_QUEUE,)),
        types=frozenset(given["types"]) if "types" in given else None,
        most=given.get("max", 1),
        lease_s=lease_length(given.get("lease", call.api.app.settings.lease_s)),
    )
    return wanted, wait_s


async def _disconnected(request: Request) -> None:
    """Ends when the client has gone. The body has been read: nothing else can come."""
    try:
        while (await request.receive())["type"] != "http.disconnect":
            pass
    except Exception:
        return  # nothing more can be heard of it


async def _claimed(call: Call, wanted: Wanted, wait_s: float, gone: asyncio.Future[None]) -> Response:
    claims, offload = call.api.claims, call.api.app.offload
    leases = await call.api.waiting_room.claim(wanted, wait_s, gone)
    if not leases:
        return no_content()
    # Written in the same thread: a hundred big payloads would hold up the event loop.
    jobs = [] if gone.done() else await offload(lambda: [write(job) for job in claims.show(leases, wanted)])
    if gone.done():
        await offload(claims.hand_back, leases, wanted.worker_id)
        raise Gone
    return answer_text(f'{{"jobs":[{",".join(jobs)}]}}') if jobs else no_content()


async def heartbeat(call: Call) -> Response:
    """200 and when the lease ends now; 409 if it is lost: the work is to be stopped."""
    call.query()
    task_id = call.task_id
    given, proof = _proven(await call.json(), HEARTBEAT)
    beat = await call.api.app.offload(call.api.work.heartbeat, task_id, proof, given.get("lease"))
    return answer(
        {
            "id": beat.task_id,
            "id_str": str(beat.task_id),
            "lease_token": str(beat.token),
            "lease_expires_at": rfc3339(beat.expires_at),
            "cancel_requested": beat.cancel_requested,
        }
    )


async def complete(call: Call) -> Response:
    """200 and the task, also when this very lease has completed it before; 409 if the lease is lost."""
    call.query()
    task_id = call.task_id
    limit = max(2 * call.api.app.settings.max_result_bytes + 64 * 1024, LARGEST_COMPLETE)
    given, proof = _proven(await call.json(limit), COMPLETE)
    return await _ended(call, call.api.work.complete, task_id, proof, given.get("result"))


async def fail(call: Call) -> Response:
    """200 and the task, pending again or dead, also when this very lease has failed it before; 409 if it is lost."""
    call.query()
    task_id = call.task_id
    given, proof = _proven(await call.json(), FAIL)
    wait = given.get("retry_after")
    failed = Failed(
        error=given.get("error", ""),
        error_type=given.get("error_type", ""),
        traceback=given.get("traceback", ""),
        retryable=given.get("retryable", True),
        retry_after_s=None if wait is None else retryafter.seconds_from(wait, call.api.app.clock.now()),
    )
    return await _ended(call, call.api.work.fail, task_id, proof, failed)


def _proven(body: Any, checks: Mapping[str, Check]) -> tuple[dict[str, Any], Proof]:
    given = fields.given(fields.members(body, checks), checks)
    if not given.keys() & PROOF.keys():
        raise Problem("invalid", "lease_token is missing: send the one of the claim", field="lease_token")
    return given, Proof(given.get("lease_token"), given.get("worker_id"))


async def _ended(call: Call, end: Any, *given: Any) -> Response:
    """A row that somebody else has locked is waited for in the event loop, not in one of the threads."""
    tries = 0
    while True:
        tries += 1
        try:
            async with call.api.ending:
                task: Task = await call.api.app.offload(end, *given)
            return await call.answer_task(task)
        except StoreUnknown:
            text = "the connection to the database broke while this was recorded; send it again, it is counted once"
            raise unknown(text) from None
        except StoreBusy:
            if tries == LOCKED_TRIES:
                raise
        await asyncio.sleep(LOCKED_AGAIN_S)
