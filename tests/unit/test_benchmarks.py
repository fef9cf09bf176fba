"""The benchmark's arithmetic, its sides, and that the ceiling's SQL is tandemq's own."""

from __future__ import annotations

import re

import pytest

from benchmarks import drive, figures, peers, registry
from benchmarks.ceiling import hotpath
from benchmarks.measure import fastest
from tandemq.store.dialects import MYSQL
from tandemq.store.statements import Statements


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([7.0], 99, 7.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([float(i) for i in range(1, 101)], 99, 99.0),
        ([1.0, 2.0], 50, 1.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], q: float, expected: float) -> None:
    assert figures.percentile(values, q) == expected


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        figures.percentile([], 50)


def test_medians_are_per_figure_over_the_rounds_that_have_it() -> None:
    done = figures.medians([{"drain": 1.0}, {"drain": 9.0, "bulk": 4.0}, {"drain": 2.0, "bulk": None}])
    assert (done["drain"], done["bulk"], done["single"]) == (2.0, 4.0, None)


@pytest.mark.parametrize(
    ("value", "base", "expected"), [(6.0, 3.0, 2.0), (None, 3.0, None), (6.0, None, None), (6.0, 0.0, None)]
)
def test_ratio_is_a_multiple_of_the_base(value: float | None, base: float | None, expected: float | None) -> None:
    assert figures.ratio(value, base) == expected


RESULTS = {
    "tandemq": {"drain": 40_000.0, "p50_ms": 3.0},
    "ceiling": {"drain": 60_000.0},
    "huey": {"drain": 4_000.0, "p50_ms": 1.5},
}


def test_table_shows_values_ratios_and_gaps() -> None:
    head, rule, ours, above, peer = figures.table(RESULTS).splitlines()
    assert head.count("|") == rule.count("|") == ours.count("|") == len(figures.FIGURES) + 2
    assert ours.startswith("| tandemq | 40,000 | - |")
    assert "60,000 (1.50x)" in above
    assert "1.5 (0.50x)" in peer


def test_losses_name_what_a_peer_does_better_and_never_the_ceiling() -> None:
    assert figures.losses(RESULTS) == ["p50 ms: huey 1.5, tandemq 3"]


def test_the_ceiling_sends_the_statements_of_tandemq() -> None:
    sql, ids, token = Statements(MYSQL, "tandemq_"), [1, 2], 5
    assert sql.insert_head() == hotpath.INSERT
    assert sql.insert_values("now", "never") == hotpath.ROW
    assert _same(hotpath.LOCK.format(ids="1,2"), sql.claim_lock(ids))
    assert _same(hotpath.CLAIM.format(ids="1,2"), sql.claim(ids))
    assert sql.insert_claim() == hotpath.INSERT_CLAIM
    assert _same(hotpath.FINISH.format(ids="1,2", token=token), sql.succeed([(i, token) for i in ids], [], []))
    assert sql.delete_claim() == hotpath.DELETE_CLAIM
    assert sql.count(1) == hotpath.COUNT


def _same(one: str, other: str) -> bool:
    return re.sub(r"\s+", "", one) == re.sub(r"\s+", "", other)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"cpu_single": 1.6, "cpu_bulk": 0.07}, 0.07),
        ({"cpu_single": 0.2, "cpu_bulk": None}, 0.2),
        ({"drain": 1.0}, None),
    ],
)
def test_cpu_is_that_of_the_cheapest_way_to_enqueue(result: figures.Result, expected: float | None) -> None:
    assert figures.cheapest_cpu(result) == expected


def test_the_faster_interface_of_a_side_counts() -> None:
    lines = [
        {"phase": "single", "way": "sync", "n": 100, "s": 1.0},
        {"phase": "single", "way": "async", "n": 100, "s": 0.5},
        {"phase": "bulk", "way": "", "n": 1000, "s": 0.1},
    ]
    assert {phase: line["way"] for phase, line in fastest(lines).items()} == {"single": "async", "bulk": ""}


class Both:
    """A side that can be called both ways, and remembers how it was."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def enqueue(self, order_id: int) -> None:
        self.seen.append(f"sync {order_id}")

    async def aenqueue(self, order_id: int) -> None:
        self.seen.append(f"async {order_id}")


@pytest.mark.parametrize(("way", "ways"), [("", ["sync", "async"]), ("sync", ["sync"]), ("async", ["async"])])
def test_a_side_is_driven_every_way_it_offers_or_as_asked(way: str, ways: list[str]) -> None:
    side = Both()
    for kind, run in drive.plan(side, "single", way, 2):
        assert kind in ways
        drive.run_to_end(run)
    assert side.seen == [f"{kind} {i}" for kind in ways for i in range(2)]


@pytest.mark.parametrize("phase", ["threads", "bulk"])
def test_every_task_of_a_phase_is_sent_once(phase: str) -> None:
    sent: list[int] = []

    class Side:
        enqueue = staticmethod(sent.append)
        enqueue_bulk = staticmethod(sent.extend)

    for _, run in drive.plan(Side, phase, "", 2500):
        drive.run_to_end(run)
    assert sorted(sent) == list(range(2500))


def test_a_command_line_takes_its_addresses_from_the_round() -> None:
    side = peers.peer("rq")
    (command,) = side.commands({"BENCH_REDIS_URL": "redis://here"})
    assert command[0] == str(peers.BIN / "rq")
    assert "redis://here" in command
    assert side.drive((("single", 5),))[-1] == "single:5"


def test_a_peer_that_is_scaled_down_keeps_its_phases() -> None:
    side, small = peers.peer("pgqueuer"), peers.peer("pgqueuer", 0.1)
    assert [phase for phase, _ in small.before] == [phase for phase, _ in side.before]
    assert dict(small.before)["bulk"] == dict(side.before)["bulk"] // 10


def test_peers_that_need_what_is_not_here_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here() -> None:
        raise peers.MissingPostgres("no PostgreSQL here: apt-get install -y postgresql")

    monkeypatch.setattr(peers, "postgres_bin", none_here)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "apt-get install" in peers.missing("pgqueuer")
    assert "apt-get install" in peers.missing("bullmq")
    assert not peers.missing("huey")


def test_every_peer_has_a_module_and_packages() -> None:
    for name in (*peers.ALWAYS, *peers.ON_REQUEST):
        module = registry.ROOT / "benchmarks" / "sides" / (f"{name}_app.py" if name != "bullmq" else "bullmq.mjs")
        assert module.exists()
        assert name == "bullmq" or peers.PACKAGES[name]
