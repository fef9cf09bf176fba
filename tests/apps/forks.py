"""Handlers that fork, for B23; run as a program: a web server that forks after its application was used."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
from typing import Any

from tandemq import Filter, RetryPolicy, TandemQ
from tests import probe

app = TandemQ()
ONCE = RetryPolicy(max_retries=0)


@app.task(name="tell")
def tell(who: str, n: int) -> str:
    with probe.running():
        return f"{who} {n}"


def leaves(how: str) -> None:
    """What the forked child of a handler does before it ends, in each of the ways that field reports name."""
    match how:
        case "_exit":
            os._exit(7)
        case "exit":
            sys.exit(7)
        case "raise":
            raise SystemExit("in the child")
        case "return":
            return
        case "close":
            os.closerange(3, 256)
            os._exit(7)
        case "dispose":
            app.close()
            os._exit(7)
        case "query":
            found = [app.get(task.id) for task in app.admin.find(Filter(), limit=3).items]
            os._exit(7 if all(found) else 1)
        case "enqueue":
            tell.enqueue("fork", os.getpid())
            os._exit(7)


def _ended(how: str, status: int) -> dict[str, Any]:
    probe.end()
    return {"how": how, "code": os.waitstatus_to_exitcode(status)}


@app.task(name="forks", retry=ONCE, timeout=60)
def forks(how: str) -> dict[str, Any]:
    probe.start()
    pid = os.fork()
    if pid == 0:
        leaves(how)
        return {"how": "the child returned"}
    return _ended(how, os.waitpid(pid, 0)[1])


@app.task(name="aforks", retry=ONCE, timeout=60)
async def aforks(how: str) -> dict[str, Any]:
    probe.start()
    pid = os.fork()
    if pid == 0:
        leaves(how)
        return {"how": "the child returned"}
    return _ended(how, (await asyncio.to_thread(os.waitpid, pid, 0))[1])


def _in_child(how: str) -> None:
    leaves(how)


@app.task(name="multiprocesses", retry=ONCE, timeout=60)
def multiprocesses(how: str) -> dict[str, Any]:
    with probe.running():
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(how,))
        child.start()
        child.join()
        return {"how": how, "code": child.exitcode}


def serve(children: int, threads: int, each: int) -> None:
    """Use the application, fork, and enqueue from several threads of every process; one JSON line per process."""
    tell.enqueue("before", 0)  # connects to both servers
    pids = []
    for child in range(children):
        pid = os.fork()
        if pid == 0:
            produce(f"child{child}", threads, each)
            os._exit(0)
        pids.append(pid)
    produce("parent", threads, each)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))


def produce(who: str, threads: int, each: int) -> None:
    """Enqueue ``each`` tasks from each thread; print ``{id: [who, n]}`` for all of them."""
    ids: dict[int, tuple[str, int]] = {}

    def run(thread: int) -> None:
        for n in range(thread * each, (thread + 1) * each):
            ids[tell.enqueue(who, n).id] = (who, n)

    several = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    os.write(1, json.dumps(ids).encode() + b"\n")


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
