"""RQ on Redis: a work-horse a job, ``Retry`` for what fails or is abandoned, its watching as quick as it can be set."""

from __future__ import annotations

import os
from collections.abc import Iterator

from redis import Redis
from rq import Queue, Retry

from tests.chaos.peers.sides import task

queue = Queue("peers", connection=Redis.from_url(os.environ["PEERS_REDIS_URL"]))


def work(ref: str) -> None:
    task.work(ref)


def enqueue(ref: str) -> None:
    queue.enqueue(work, ref, retry=Retry(max=20), result_ttl=0)


def left() -> Iterator[tuple[str, str]]:
    """(ref, where) of every job that Redis still names."""
    places = {
        "queue": queue.get_job_ids(),
        "intermediate": queue.intermediate_queue.get_job_ids(),
        "started": queue.started_job_registry.get_job_ids(cleanup=False),
        "scheduled": queue.scheduled_job_registry.get_job_ids(),
        "dead": queue.failed_job_registry.get_job_ids(cleanup=False),
    }
    for where, ids in places.items():
        for job_id in ids:
            job = queue.fetch_job(job_id.split(":")[0])
            if job is not None:
                yield str(job.args[0]), where
