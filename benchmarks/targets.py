"""What tandemq is asked for (issue 3), judged from the figures of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.figures import BASE, CEILING, Result, Results, cheapest_cpu, peers, short

#: The fastest durable peer.
DURABLE = "pgqueuer"
AHEAD_OF = ("rq", "celery", "saq", "pgqueuer")
ELSEWHERE = (
    ("drain with 5M finished rows against empty", ">= 80%", "make bench-scale"),
    ("2 x 8 slots, 5 ms and 2 s tasks mixed: p99 from enqueue to start", "< 150 ms", "the scenarios"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target. ``met`` is None where this run cannot tell, and ``figure`` says why."""

    target: str
    figure: str
    bound: str
    met: bool | None

    def __str__(self) -> str:
        word = {True: "met", False: "MISSED", None: "not judged"}[self.met]
        return f"{word:<10}  {self.target}: {self.figure} (asked: {self.bound})"


def judge(results: Results) -> list[Verdict]:
    """Every target of the issue's table, in its order."""
    return [
        *_against_peers(results),
        *_latency(results),
        _cpu(results),
        _bytes(results),
        *(Verdict(target, f"not in this run: {where}", bound, None) for target, bound, where in ELSEWHERE),
    ]


def _against_peers(results: Results) -> Iterator[Verdict]:
    fastest, _ = _best(results, lambda result: result.get("drain"), max)
    yield _ratio(results, BASE, fastest, "drain", 5.0, "drain against the fastest peer")
    yield _ratio(results, BASE, CEILING, "drain", 0.6, "drain against the ceiling", percent=True)
    yield _ratio(results, CEILING, fastest, "drain", 5.0, "the ceiling's own drain against the fastest peer")
    yield _ratio(results, BASE, DURABLE, "bulk", 1.3, "bulk enqueue against the fastest durable peer")
    yield _ratio(results, BASE, DURABLE, "single", 1.2, "single enqueue, one thread, against the same")
    yield _ratio(results, BASE, DURABLE, "threads", 3.0, "32 concurrent enqueues against its best with 32")


def _latency(results: Results) -> Iterator[Verdict]:
    mine = results[BASE]
    for name, most in (("p50_ms", 2.0), ("p99_ms", 5.0)):
        value = mine.get(name)
        figure = f"{short(value)} ms" if value is not None else "not measured"
        yield Verdict(f"idle latency {name[:3]}", figure, f"<= {most:g} ms", None if value is None else value <= most)
    for side in AHEAD_OF:
        theirs = results.get(side)
        target, bound = f"idle latency ahead of {side}", "p50 and p99 below its"
        lacking = BASE if mine.get("p99_ms") is None else side if not theirs or theirs.get("p99_ms") is None else ""
        if lacking:
            yield Verdict(target, _not_run(lacking), bound, None)
            continue
        pairs = [(mine[name] or 0.0, (theirs or {})[name] or 0.0) for name in ("p50_ms", "p99_ms")]
        figure = " and ".join(f"{short(ours)} ms to {short(other)} ms" for ours, other in pairs)
        yield Verdict(target, figure, bound, all(ours < other for ours, other in pairs))


def _cpu(results: Results) -> Verdict:
    target, bound = "CPU per 1,000 tasks against the best peer, each by its cheapest enqueue", "<= 25%"
    side, theirs = _best(results, cheapest_cpu, min)
    mine = cheapest_cpu(results[BASE])
    if mine is None or theirs is None:
        return Verdict(target, _not_run("no peer" if side is None else side), bound, None)
    figure = f"{100 * mine / theirs:.0f}% of {side} ({short(mine)} s to {short(theirs)} s)"
    return Verdict(target, figure, bound, mine <= 0.25 * theirs)


def _bytes(results: Results) -> Verdict:
    value = results[BASE].get("redis_bytes")
    return Verdict("Redis bytes per ready task", short(value), "<= 10", None if value is None else value <= 10)


def _ratio(
    results: Results, mine: str, other: str | None, figure: str, bound: float, target: str, *, percent: bool = False
) -> Verdict:
    asked = f">= {bound:.0%}" if percent else f">= {bound:g}x"
    for side in (mine, other):
        if side is None or results.get(side, {}).get(figure) is None:
            return Verdict(target, _not_run(side), asked, None)
    assert other is not None  # noqa: S101 - found above
    ours, theirs = results[mine][figure], results[other][figure]
    assert ours is not None and theirs  # noqa: S101, PT018 - found above
    times = ours / theirs
    shown = f"{times:.0%}" if percent else f"{times:.2f}x"
    return Verdict(target, f"{shown} of {other} ({short(ours)} to {short(theirs)})", asked, times >= bound)


def _best(
    results: Results, value_of: Callable[[Result], float | None], choose: Callable[..., str]
) -> tuple[str | None, float | None]:
    values = {side: value for side, result in peers(results).items() if (value := value_of(result)) is not None}
    if not values:
        return None, None
    side = choose(values, key=lambda name: values[name])
    return side, values[side]


def _not_run(side: str | None) -> str:
    return "no peer was run" if side in {None, "no peer"} else f"{side} was not run"
