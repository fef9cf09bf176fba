"""What a route is: a method, a path, who may use it, and its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from starlette.responses import Response

from tandemq.http.calls import Call

Handler = Callable[[Call], Awaitable[Response]]


class Role(StrEnum):
    """What a token may do; one token may have several."""

    #: Look at everything.
    READ = "read"
    #: Enqueue, and look at one task.
    PRODUCE = "produce"
    #: Claim, heartbeat, complete, fail, and look at one task.
    WORK = "work"
    #: Everything.
    OPERATE = "operate"


#: Without a token: for the probes of an orchestrator. These say one word each.
ANYBODY: Final = None
LOOK: Final = frozenset({Role.READ, Role.OPERATE})
LOOK_AT_ONE: Final = frozenset(Role)
PRODUCE: Final = frozenset({Role.PRODUCE, Role.OPERATE})
WORK: Final = frozenset({Role.WORK, Role.OPERATE})
OPERATE: Final = frozenset({Role.OPERATE})


@dataclass(frozen=True, slots=True)
class Route:
    """``name`` is the operationId; ``roles``: a token needs one of these, None for anybody."""

    method: str
    path: str
    name: str
    roles: frozenset[Role] | None
    handler: Handler
