"""What a race is: a name, two actors, the points where each may be held, and a judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.races_stage import Stage

Answers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Duel:
    """One race, prepared. ``judge`` gets what each actor answered and asserts; ``finally_`` comes after the drain."""

    actors: dict[str, Callable[[], Any]]
    judge: Callable[[Answers], None]
    may_raise: dict[str, tuple[type[Exception], ...]] = field(default_factory=dict)
    finally_: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """``points``: by actor, where it is held; every one gives an order. ``begin`` prepares a Duel on an empty stage."""

    name: str
    points: dict[str, tuple[str, ...]]
    begin: Callable[[Stage], Duel]


class Races(list[Spec]):
    """The races of a module, in the order in which they are written."""

    def __call__(self, name: str, **points: str) -> Callable[[Callable[[Stage], Duel]], Callable[[Stage], Duel]]:
        """Register a race; ``points`` by actor, several with blanks between.

        ``place=point``: the product has no crash point at this place; the race passes that one there (``seam``).
        """

        def register(begin: Callable[[Stage], Duel]) -> Callable[[Stage], Duel]:
            self.append(Spec(name, {actor: tuple(text.split()) for actor, text in points.items()}, begin))
            return begin

        return register
