"""Directed races (F23): two actors on real servers, one held at a crash point while the other runs; in both orders.

``run()`` is called by ``python -m tests.chaos``; ``python -m tests.chaos.races [WORD...] [TIMES]`` runs those whose
names hold a word. The races are in ``races_running``, ``_finishing``, ``_ending``, ``_people`` and ``_redis``; how they
are played and what must hold after each is in ``races_stage``.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.chaos import races_ending, races_finishing, races_people, races_redis, races_running
from tests.chaos.races_duel import Duel, Spec
from tests.chaos.races_stage import Stage, open_stage, play

MODULES = (races_running, races_finishing, races_ending, races_people, races_redis)
SPECS: dict[str, Spec] = {spec.name: spec for module in MODULES for spec in module.RACES}


class Race(NamedTuple):
    """What one race in one order showed. ``order``: who was held, and where."""

    name: str
    order: str
    ok: bool
    detail: str


class Order(NamedTuple):
    """Which of the two is held, and at which crash point; ``label`` is how the place is called."""

    held: str
    point: str
    label: str

    def __str__(self) -> str:
        return f"{self.held} held at {self.label}"


def orders(spec: Spec) -> Iterator[Order]:
    """Every actor held at each of its points."""
    for name, points in spec.points.items():
        for point in points:
            label, _, alias = point.partition("=")
            yield Order(name, alias or label, label)


def race(stage: Stage, spec: Spec, order: Order) -> None:
    """Run it once. AssertionError says what did not hold."""
    try:
        _race(stage, spec, order)
    except (AssertionError, ValueError, LookupError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise AssertionError(f"{str(error) or type(error).__name__} ({where.line}, {where.name})") from error


def _race(stage: Stage, spec: Spec, order: Order) -> None:
    stage.empty()
    duel: Duel = spec.begin(stage)
    (other,) = set(duel.actors) - {order.held}
    answers: dict[str, Any] = {}
    answers[order.held], answers[other] = play(stage, duel.actors[order.held], order.point, duel.actors[other])
    for name, answer in answers.items():
        allowed = duel.may_raise.get(name, ())
        assert not isinstance(answer, Exception) or isinstance(answer, allowed), f"{name} raised {answer!r}"
    duel.judge(answers)
    stage.check()
    stage.drain()
    if duel.finally_ is not None:
        duel.finally_()


def run(
    *, times: int = 1, only: Sequence[str] = (), stage: Stage | None = None, say: Callable[[Race], object] | None = None
) -> list[Race]:
    """All races in all orders, each so many times; ``only``: names that hold one of these words (or are ``=NAME``)."""
    if stage is None:
        with open_stage() as own:
            return run(times=times, only=only, stage=own, say=say)
    done: list[Race] = []
    for spec in SPECS.values():
        if only and not any(word == f"={spec.name}" or word in spec.name for word in only):
            continue
        for order in orders(spec):
            ok, detail = True, f"{times} of {times}"
            for turn in range(times):
                try:
                    race(stage, spec, order)
                except AssertionError as error:
                    ok, detail = False, f"turn {turn + 1}: {error}"
                    break
            done.append(Race(spec.name, str(order), ok, detail))
            if say is not None:
                say(done[-1])
    return done


def main() -> int:
    """Print a line for each; 1 if any did not hold."""
    words, times = [w for w in sys.argv[1:] if not w.isdecimal()], [int(w) for w in sys.argv[1:] if w.isdecimal()]
    done = run(
        times=max(times, default=1),
        only=words,
        say=lambda r: print(
            "ok  " if r.ok else "FAIL", r.name, "-", r.order, "" if r.ok else f": {r.detail}", flush=True
        ),
    )
    failed = [r for r in done if not r.ok]
    print(f"{len(done)} races, {len(failed)} failed")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
