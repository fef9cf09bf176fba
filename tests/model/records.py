"""What the ledger of the model keeps: rows and claims as read, handlers that were entered, enqueues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.coop import Process


class Row(NamedTuple):
    """A task as stored, times as text."""

    id: int
    n: str
    status: str
    attempts: int
    max_retries: int
    replays: int
    fence: int
    token: int
    cancel: str
    run_at: str
    expires_at: str
    dead_reason: str


class ClaimRow(NamedTuple):
    """A row of claims."""

    token: int
    worker_id: str
    expires_at: str
    ids: frozenset[int]


@dataclass
class Run:
    """A handler that was entered. ``outcome``: how the test lets it end. ``ended``: it returned or raised."""

    id: int
    token: int
    fence: int
    life: int
    process: Process
    outcome: str | None = None
    ended: bool = False


@dataclass
class Promise:
    """One enqueue. ``outcome``: stored, refused (never to be seen) or unknown."""

    outcome: str = "unknown"
    id: int | None = None
    key: str | None = None
