"""The targets of the issue, judged from figures; and the bars of the chart."""

from __future__ import annotations

import pytest

from benchmarks import chart, targets
from benchmarks.figures import Results

OURS = {
    "drain": 40_000.0,
    "single": 2_400.0,
    "threads": 12_000.0,
    "bulk": 52_000.0,
    "p50_ms": 1.9,
    "p99_ms": 4.9,
    "redis_bytes": 4.4,
    "cpu_single": 1.0,
    "cpu_bulk": 0.05,
}
PGQUEUER = {
    "drain": 8_000.0,
    "single": 2_000.0,
    "threads": 4_000.0,
    "bulk": 40_000.0,
    "p50_ms": 5.0,
    "p99_ms": 9.0,
    "cpu_single": 1.2,
    "cpu_bulk": 0.2,
}
HUEY = {"drain": 6_000.0, "p50_ms": 1.0, "p99_ms": 1.2, "cpu_single": 0.27, "redis_bytes": 144.0}
ALL: Results = {"tandemq": OURS, "ceiling": {"drain": 60_000.0}, "pgqueuer": PGQUEUER, "huey": HUEY}


def judged(results: Results) -> dict[str, targets.Verdict]:
    return {verdict.target: verdict for verdict in targets.judge(results)}


@pytest.mark.parametrize(
    ("target", "figure"),
    [
        ("drain against the fastest peer", "5.00x of pgqueuer (40,000 to 8,000)"),
        ("drain against the ceiling", "67% of ceiling (40,000 to 60,000)"),
        ("the ceiling's own drain against the fastest peer", "7.50x of pgqueuer (60,000 to 8,000)"),
        ("bulk enqueue against the fastest durable peer", "1.30x of pgqueuer (52,000 to 40,000)"),
        ("single enqueue, one thread, against the same", "1.20x of pgqueuer (2,400 to 2,000)"),
        ("32 concurrent enqueues against its best with 32", "3.00x of pgqueuer (12,000 to 4,000)"),
        ("idle latency p50", "1.9 ms"),
        ("idle latency p99", "4.9 ms"),
        ("idle latency ahead of pgqueuer", "1.9 ms to 5 ms and 4.9 ms to 9 ms"),
        (
            "CPU per 1,000 tasks against the best peer, each by its cheapest enqueue",
            "25% of pgqueuer (0.05 s to 0.2 s)",
        ),
        ("Redis bytes per ready task", "4.4"),
    ],
)
def test_a_target_that_is_just_reached_is_met(target: str, figure: str) -> None:
    verdict = judged(ALL)[target]
    assert (verdict.met, verdict.figure) == (True, figure)


@pytest.mark.parametrize(
    ("side", "figure", "value", "target"),
    [
        ("tandemq", "drain", 39_000.0, "drain against the fastest peer"),
        ("huey", "drain", 9_000.0, "drain against the fastest peer"),
        ("ceiling", "drain", 80_000.0, "drain against the ceiling"),
        ("ceiling", "drain", 39_000.0, "the ceiling's own drain against the fastest peer"),
        ("pgqueuer", "bulk", 41_000.0, "bulk enqueue against the fastest durable peer"),
        ("tandemq", "single", 2_300.0, "single enqueue, one thread, against the same"),
        ("tandemq", "threads", 11_000.0, "32 concurrent enqueues against its best with 32"),
        ("tandemq", "p50_ms", 2.1, "idle latency p50"),
        ("tandemq", "p99_ms", 5.1, "idle latency p99"),
        ("pgqueuer", "p99_ms", 4.0, "idle latency ahead of pgqueuer"),
        ("huey", "cpu_single", 0.1, "CPU per 1,000 tasks against the best peer, each by its cheapest enqueue"),
        ("tandemq", "redis_bytes", 10.5, "Redis bytes per ready task"),
    ],
)
def test_a_target_that_is_not_reached_is_missed(side: str, figure: str, value: float, target: str) -> None:
    changed = {name: {**result, figure: value} if name == side else result for name, result in ALL.items()}
    assert judged(changed)[target].met is False


def test_what_cannot_be_judged_says_which_side_was_not_run() -> None:
    found = judged({"tandemq": OURS, "ceiling": {"drain": 60_000.0}})
    assert found["drain against the fastest peer"].figure == "no peer was run"
    assert found["bulk enqueue against the fastest durable peer"].figure == "pgqueuer was not run"
    assert found["idle latency ahead of saq"].figure == "saq was not run"
    assert found["drain against the ceiling"].met is True
    left = {verdict.figure for verdict in found.values() if verdict.target.startswith("drain with 5M")}
    assert left == {"not in this run: make bench-scale"}


def test_a_side_that_failed_is_not_judged_and_nothing_breaks() -> None:
    nothing = dict.fromkeys(OURS)
    assert all(verdict.met is None for verdict in targets.judge({"tandemq": nothing, "pgqueuer": PGQUEUER}))


def test_a_verdict_is_one_line_with_figure_and_bound() -> None:
    assert str(judged(ALL)["idle latency p50"]) == "met         idle latency p50: 1.9 ms (asked: <= 2 ms)"


def test_bars_are_sorted_best_first_and_labelled_with_the_multiple_of_tandemq() -> None:
    assert chart.bars(ALL, "drain") == [
        ("ceiling", 60_000.0, "ceiling  60,000 (1.50x)"),
        ("tandemq", 40_000.0, "tandemq  40,000"),
        ("pgqueuer", 8_000.0, "pgqueuer  8,000 (0.20x)"),
        ("huey", 6_000.0, "huey  6,000 (0.15x)"),
    ]
    assert [side for side, _, _ in chart.bars(ALL, "p50_ms")] == ["huey", "tandemq", "pgqueuer"]


def test_the_cpu_panel_takes_the_cheapest_way_and_leaves_out_who_has_no_figure() -> None:
    assert [(side, value) for side, value, _ in chart.bars(ALL, "cpu")] == [
        ("tandemq", 0.05),
        ("pgqueuer", 0.2),
        ("huey", 0.27),
    ]


def test_panels_are_put_beside_and_below_each_other() -> None:
    one = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 100"><g/></svg>'
    whole = chart.compose([one, one, one], "caption")
    assert whole.count('x="0" y="34" width="560" height="100"') == 1
    assert whole.count('x="560" y="34"') == 1
    assert whole.count('x="0" y="134"') == 1
    assert 'viewBox="0 0 1120 234"' in whole
