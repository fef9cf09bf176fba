"""A crash point raises, or stops the worker for longer than its leases stand: the same must hold as when it dies."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.crash.fleet import CHILD, EVERY_S, FETCHING, FINISHING, PATIENCE_S, RELEASING, RUNNING, Fleet
from tests.scenarios.truth import sql
from tests.waiting import eventually

#: An error there ends the process: what it held is its supervisor's to judge, and it is replaced.
REPLACES = ("run.before_begin", "run.after_end", "finish.after_commit", "retry.after_commit", "retry.after_push")
#: An error there is an error of one turn, or of one attempt.
SURVIVES = (*(p for p in (*FETCHING, *RUNNING, *FINISHING) if p not in REPLACES), "renew.before", "renew.after")
LONG = ("--grace", "30")
REPLACED = "died (exit code 1)"


def test_an_error_at_each_point_loses_nothing(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fleet.heal()
    fleet.enqueue("all", 1, "hold", until=str(gate))  # something to renew
    fleet.start("all", ",".join(f"{point}:2:raise" for point in SURVIVES), "-c", "4")
    for point in REPLACES:
        fleet.enqueue(point, kind="flaky" if point.startswith("retry.") else "noop")
        fleet.start(point, f"{point}:2:raise")

    def all_hit() -> bool:
        if not set(SURVIVES) <= fleet.marks.hit():
            fleet.enqueue("all", 2)
        return {*SURVIVES, *REPLACES} <= fleet.marks.hit()

    eventually(all_hit, PATIENCE_S, lambda: {*SURVIVES, *REPLACES} - fleet.marks.hit(), every_s=0.2)
    gate.touch()
    fleet.check()
    assert {p for p, worker in fleet.workers.items() if REPLACED in worker.text()} == set(REPLACES)
    assert [p for p, worker in fleet.workers.items() if worker.process.poll() is not None] == []


def test_an_error_while_a_worker_stops_loses_nothing(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fleet.heal()
    points = ("shutdown.signal", *RELEASING)
    held = [task_id for point in points for task_id in fleet.enqueue(point, 1, "hold", until=str(gate))]
    for point in points:
        fleet.enqueue(point)
        fleet.start(point, f"{point}:1:raise", "-c", "1", *LONG)
    fleet.wait_begun(held)
    for point in points:
        fleet.workers[point].signal(signal.SIGTERM)
    assert {p: fleet.workers[p].wait() for p in points} == {p: int(p == "shutdown.signal") for p in points}
    assert fleet.marks.hit() == set(points)
    gate.touch()
    fleet.replace(points)
    fleet.check()


def test_an_error_while_a_used_up_process_drains_does_not_stall_its_worker(fleet: Fleet) -> None:
    fleet.heal()
    for point in RELEASING:
        fleet.enqueue(point, 5)
        fleet.start(point, f"{point}:1:raise", "--max-tasks", "3")
    fleet.check()
    assert fleet.marks.hit() == set(RELEASING)


ENDS = ("shutdown.signal", *RELEASING)
BUSY = ("renew.before", "renew.after", *ENDS)
#: Where a worker that is stopped has leases in its hands, whatever else it does.
HOLDS = ("claim.after_commit", *RUNNING, "finish.before_commit")


def test_a_worker_that_was_stopped_for_longer_than_its_leases_does_no_harm_when_it_goes_on(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Another runs its tasks when it goes on; what it writes late is refused, and then it works as before."""
    gate, gate_again = tmp_path / "gate", tmp_path / "again"
    fleet.heal()
    held = [task_id for point in BUSY for task_id in fleet.enqueue(point, 1, "hold", until=str(gate))]
    for point in (*CHILD, *BUSY):
        if point.startswith("retry."):
            fleet.enqueue(point, 4, "flaky")
        else:
            fleet.enqueue(point, 4, "hold_again", until=str(gate_again))
        fleet.start(point, f"{point}:{1 if point in ENDS else 2}:stop", *LONG)
    stopped: set[str] = set()
    to_end = list(ENDS)

    def all_stopped() -> bool:
        while to_end and set(held) <= set(fleet.probe.starts()):
            fleet.workers[to_end.pop()].signal(signal.SIGTERM)
        for point in fleet.marks.stopped() - stopped:
            fleet.stop(point)
            stopped.add(point)
        return stopped == {*CHILD, *BUSY}

    eventually(all_stopped, PATIENCE_S, lambda: {*CHILD, *BUSY} - stopped)
    gate.touch()
    other = fleet.replace((*CHILD, *BUSY), "--name", "other", "-c", "60")
    again = "FROM {t}tasks WHERE status = 'running' AND worker_id LIKE 'other-%' AND payload LIKE '%again%'"

    def running_again() -> set[tuple[object, ...]]:
        return set(sql(fleet.work, f"SELECT queue, id, fence, lease_token {again} AND attempts > 1"))

    def taken_over() -> bool:
        waiting = {point for point, states in fleet.states().items() if states["pending"]}
        return not waiting and set(HOLDS) <= {queue for queue, *_ in running_again()}

    eventually(taken_over, PATIENCE_S, lambda: (fleet.states(), other.text()[-2000:]), every_s=EVERY_S)
    taken = running_again()
    fleet.resume()

    def refused() -> set[str]:
        return {p for p, worker in fleet.workers.items() if "late result is refused" in worker.text()}

    eventually(lambda: set(HOLDS) <= refused(), PATIENCE_S, lambda: set(HOLDS) - refused())
    assert taken <= running_again(), "a late result was written"
    gate_again.touch()
    for point in ENDS:
        assert fleet.workers[point].wait() == 0, fleet.workers[point].text()
    other.signal(signal.SIGTERM)
    assert other.wait() == 0
    for point in set(fleet.workers) - set(ENDS):
        fleet.enqueue(point, 2)
    fleet.check()
