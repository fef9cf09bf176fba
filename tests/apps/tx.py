"""Handlers that take ``tx``: what they leave in the table ``steps`` tells how often their effects happened."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, text

from tandemq import IN_TRANSACTION, RetryPolicy, TandemQ, current_task
from tests import probe

app = TandemQ()
QUICK = RetryPolicy(backoff=[0.05], jitter=0)


def leave(tx: Connection, chain: int, n: int) -> None:
    tx.execute(text("INSERT INTO steps (chain, n) VALUES (:chain, :n)"), {"chain": chain, "n": n})


@app.task(name="link", retry=QUICK)
def link(chain: int, n: int, tx: Connection = IN_TRANSACTION) -> int:
    """One link of a chain: its row, and the next link, or neither."""
    probe.start()
    leave(tx, chain, n)
    if n > 1:
        link.using(connection=tx, max_retries=current_task().max_retries).enqueue(chain, n - 1)
    return n


@app.task(name="flaky_link", retry=QUICK)
def flaky_link(chain: int, tx: Connection = IN_TRANSACTION) -> None:
    leave(tx, chain, current_task().attempt)
    if current_task().attempt < 3:
        raise OSError("not yet")


@app.task(name="slow_link", retry=QUICK)
def slow_link(chain: int, seconds: float, tx: Connection = IN_TRANSACTION) -> Any:
    leave(tx, chain, 1)
    probe.start()
    time.sleep(seconds)
    leave(tx, chain, 2)


@app.task(name="committing_link", retry=QUICK)
def committing_link(chain: int, tx: Connection = IN_TRANSACTION) -> None:
    leave(tx, chain, 1)
    tx.commit()


@app.task(name="noop")
def noop() -> None:
    with probe.running():
        pass
