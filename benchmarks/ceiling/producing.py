"""The producer of the ceiling: one thread sends its rows itself, many hand theirs to one flusher."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Sequence

import redis

from benchmarks.ceiling import hotpath

#: Rows of one INSERT of the flusher.
MAX_ROWS = 500


class Producer:
    """One connection to each server, for one thread."""

    def __init__(self) -> None:
        self._session = hotpath.new_session()
        self._redis = redis.Redis.from_url(os.environ["BENCH_REDIS_URL"])

    def send(self, kind: str, payloads: Sequence[str]) -> None:
        """Stored, committed and pushed when it returns."""
        hotpath.push(self._redis, hotpath.insert(self._session, kind, payloads))


class Flusher:
    """A thread that inserts whatever has come meanwhile; each caller waits for the commit that holds his row."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[str, threading.Lock]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, payload: str) -> None:
        """Of one noop task."""
        answered = threading.Lock()
        answered.acquire()
        self._waiting.put((payload, answered))
        answered.acquire()

    def _run(self) -> None:
        producer = Producer()
        while True:
            group = [self._waiting.get()]
            while len(group) < MAX_ROWS and not self._waiting.empty():
                group.append(self._waiting.get())
            producer.send("noop", [payload for payload, _ in group])
            for _, answered in group:
                answered.release()


_made: dict[str, Producer | Flusher] = {}
_making = threading.Lock()


def _producer() -> Producer:
    if "producer" not in _made:
        _made["producer"] = Producer()
    return _made["producer"]  # type: ignore[return-value]


def _flusher() -> Flusher:
    with _making:
        if "flusher" not in _made:
            _made["flusher"] = Flusher()
    return _made["flusher"]  # type: ignore[return-value]


def _payload(order_id: int) -> str:
    return json.dumps({"order_id": order_id}, separators=(",", ":"))


def enqueue(order_id: int) -> None:
    if threading.current_thread() is threading.main_thread():
        _producer().send("noop", [_payload(order_id)])
    else:
        _flusher().send(_payload(order_id))


def enqueue_stamp(order_id: int) -> None:
    _producer().send("stamp", [_payload(order_id)])


def enqueue_bulk(order_ids: Sequence[int]) -> None:
    _producer().send("noop", [_payload(i) for i in order_ids])
