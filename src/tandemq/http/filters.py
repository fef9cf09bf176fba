"""What lists are narrowed to: parameters of a query, or the ``filter`` of a replay, as a Filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import Response

from tandemq.core import values
from tandemq.core.codec import write
from tandemq.core.lifecycle import DeadReason, Status
from tandemq.http import fields
from tandemq.http.calls import Call, answer_text
from tandemq.http.fields import Check
from tandemq.http.problems import Problem
from tandemq.store.answers import Filter, Page

STATUSES: Final = tuple(status.value for status in Status)
#: Of pending tasks; the state of all others is their status.
PENDING_STATES: Final = ("ready", "scheduled", "retrying")
STATES: Final = (*PENDING_STATES, *STATUSES[1:])
ENDED_BADLY: Final = (Status.DEAD.value, Status.CANCELLED.value)
REASONS: Final = tuple(reason.value for reason in DeadReason)
DEFAULT_LIMIT: Final = 50
#: Of the texts of a page. One that would be larger ends earlier, and has a ``next``.
PAGE_BYTES: Final = 4 * 1024 * 1024

OF_JOBS: Final[Mapping[str, Check]] = {
    "status": fields.one_of(*STATUSES),
    "state": fields.one_of(*STATES),
    "queue": values.queue_name,
    "type": values.task_type,
    "worker_id": fields.worker_id,
    "error_type": fields.text(fields.MAX_ERROR_TYPE, least=1),
    "key": values.idempotency_key,
}
OF_DEAD: Final[Mapping[str, Check]] = {
    "queue": values.queue_name,
    "type": values.task_type,
    "error": fields.text(fields.MAX_ERROR_TEXT, least=1),
    "error_type": fields.text(fields.MAX_ERROR_TYPE, least=1),
    "reason": fields.one_of(*REASONS),
    "state": fields.one_of(*ENDED_BADLY),
}
PAGING: Final[Mapping[str, Check]] = {
    "limit": fields.matching(fields.LIMIT_PATTERN, "a whole number from 1 to 1000"),
    "after": fields.matching(fields.ID_PATTERN, "the next of the page before"),
}
#: Names of members of Filter, where they are others.
_FILTER_NAMES: Final = {"type": "task_type", "error": "error_text"}


def filter_of(given: Mapping[str, Any]) -> Filter:
    """Checked values as a Filter."""
    return Filter(**{_FILTER_NAMES.get(name, name): value for name, value in given.items() if name not in PAGING})


def dead_filter(body: Any, field: str) -> Filter:
    """The ``filter`` of a replay. An empty one is refused: nothing at all must not mean everything."""
    given = fields.members(body, OF_DEAD, field=field)
    if not given:
        text = f'{field} is empty; say {{"state": "dead"}} for every dead task'
        raise Problem("invalid", text, field=field)
    return filter_of({name: OF_DEAD[name](value, f"{field}.{name}") for name, value in given.items()})


def narrowed(call: Call, checks: Mapping[str, Check]) -> dict[str, Any]:
    """The parameters of the query, checked: those of a list and of its paging."""
    checks = {**checks, **PAGING}
    return {name: checks[name](value, name) for name, value in call.query(*checks).items()}


async def listed(call: Call, find: Callable[..., Page], where: Filter, given: Mapping[str, str]) -> Response:
    """A page that begins where the query says. It is written where it is read, in a thread, task by task."""
    limit, after = int(given.get("limit", DEFAULT_LIMIT)), given.get("after")

    def text() -> str:
        page = find(where, limit=limit, after=None if after is None else int(after), max_bytes=PAGE_BYTES)
        return _text(page)

    return answer_text(await call.api.app.offload(text))


def empty() -> Response:
    """Nothing fits."""
    return answer_text(_text(Page(())))


def _text(page: Page) -> str:
    # The cursor is text, which clients hand back as it is.
    following = None if page.next is None else str(page.next)
    return f'{{"items":[{",".join(write(task.to_json()) for task in page.items)}],"next":{write(following)}}}'
