"""A copy of the process that comes out of a handler ends there, as a program of its own would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WAYS = {
    "return": 0,
    "sys.exit()": 0,
    "sys.exit(7)": 7,
    "sys.exit(-1)": 255,
    "sys.exit('no luck')": 1,
    "raise ValueError('bad luck')": 1,
}
PROGRAM = """
import json, os, sys
from tandemq import TandemQ
from tandemq.broker import in_process
from tandemq.core.clock import SystemClock
from tandemq.testing import run_until_idle
app = TandemQ(data_dir=sys.argv[1], broker=in_process("tandemq", SystemClock()))
def leave(way):
    print("in the child", way)
    if "exit" in way: eval(way)
    if "raise" in way: raise ValueError("bad luck")
@app.task(max_retries=0)
{kind} forks(way):
    pid = os.fork()
    if pid == 0:
        leave(way)
        return "the child came out"
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
handles = {{way: forks.enqueue(way) for way in json.loads(sys.argv[2])}}
run_until_idle(app)
print(json.dumps({{way: handle.result(timeout=0) for way, handle in handles.items()}}))
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_fork_that_leaves_its_handler_ends(kind: str, tmp_path: Path) -> None:
    """Red under: going on in the copy: it waits for ever, and its parent for it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(kind=kind), str(tmp_path), json.dumps(list(WAYS))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    *said, codes = done.stdout.splitlines()
    assert json.loads(codes) == WAYS, done.stderr
    assert sorted(said) == sorted(f"in the child {way}" for way in WAYS), "what it wrote is there, once"
    assert done.stderr.count("no luck") == 1
    assert done.stderr.count("ValueError: bad luck") == 1
    assert done.stderr.count("Traceback") == 1


HOOK = """
import os, random
from tandemq import TaskHandler
from tandemq.core.clock import SystemClock
from tandemq.core.lifecycle import Failure
from tandemq.registry import RegisteredTask, Registry, TaskOptions
from tandemq.worker.executor import Executor
class Order(TaskHandler):
    name = "order"
    def process(self, payload): pass
    def on_dead_letter(self, task_id, payload, error):
        if (pid := os.fork()) != 0:
            print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
registry = Registry()
registry.add(RegisteredTask.of(Order, TaskOptions()))
executor = Executor(registry, clock=SystemClock(), rng=random.Random(1), max_result_bytes=9, transaction=None)
executor.on_dead_letter("order", 1, "{}", Failure("E", "text"))
print("came out", flush=True)
"""


def test_a_fork_that_leaves_a_dead_letter_hook_ends_too() -> None:
    done = subprocess.run([sys.executable, "-c", HOOK], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["child 0", "came out"], done.stderr
