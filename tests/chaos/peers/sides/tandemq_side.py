"""tandemq: default settings but for the lease, which is as short as the visibility timeout of the others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import sqlalchemy as sa

from tandemq import TandemQ
from tests.chaos.peers.sides import task

app = TandemQ()


@app.task(name="work")
def work(ref: str) -> None:
    task.work(ref)


def enqueue(ref: str) -> None:
    work.enqueue(ref=ref)


def left() -> Iterator[tuple[str, str]]:
    """(ref, where) of every row that is not done, by SQL."""
    engine = sa.create_engine(os.environ["TANDEMQ_DATABASE_URL"])
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT payload, status FROM tandemq_tasks WHERE status <> 'succeeded'"))
        for payload, status in rows:
            yield json.loads(payload)["ref"], status
    engine.dispose()
