"""tandemq: PyMySQL and redis-py, default settings; worker -p 2 -c 8. Bulk: ``enqueue_many``, 1,000 tasks a call."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import marks
from tandemq import NewTask, TandemQ

app = TandemQ()


@app.task(name="noop")
def noop(order_id: int) -> None:
    marks.noop()


@app.task(name="stamp")
def stamp(order_id: int) -> None:
    marks.stamp(order_id)


def enqueue(order_id: int) -> None:
    noop.enqueue(order_id=order_id)


def enqueue_stamp(order_id: int) -> None:
    stamp.enqueue(order_id=order_id)


def enqueue_bulk(order_ids: Iterable[int]) -> None:
    app.enqueue_many([NewTask("noop", {"order_id": i}) for i in order_ids])
