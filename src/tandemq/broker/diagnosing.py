"""Asks Redis for its settings and for samples of what lies in it; judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from itertools import chain
from typing import Any

import redis
from redis import exceptions as rx

from tandemq.broker.client import Pools, Role
from tandemq.broker.commands import Command, ask, ask_all
from tandemq.broker.errors import WrongType
from tandemq.broker.facts import RedisFacts, Sample
from tandemq.broker.keys import Keys, chunks, expected_type
from tandemq.core.task import Level

#: Entries in one round trip of ``remove``.
CHUNK = 500
#: Whatever is sent by itself or inside a script, with arguments that would do. The key is put in as ``k``.
_NEEDED: tuple[tuple[str, ...], ...] = (
    ("SADD", "k", "1"), ("SMEMBERS", "k"), ("LPUSH", "k", "1"), ("RPUSH", "k", "1"), ("BRPOP", "k", "0.01"),
    ("RPOP", "k", "1"), ("LLEN", "k"), ("LRANGE", "k", "0", "0"), ("ZADD", "k", "1", "1"), ("ZCARD", "k"),
    ("ZRANGEBYSCORE", "k", "0", "0"), ("ZREM", "k", "1"), ("GET", "k"), ("SET", "k", "1"), ("TYPE", "k"),
    ("UNLINK", "k"), ("EVAL", "return 1", "1", "k"), ("EVALSHA", "0" * 40, "1", "k"),
)  # fmt: skip


class DiagnosingBroker:
    """``broker.facts.Diagnosing``."""

    _connections: Pools
    _keys: Keys

    def server_info(self) -> Mapping[str, str] | None:
        """See the protocol."""
        with self._connections.use(Role.SERVE) as client:
            answer = _answer(client, "INFO")
        return None if answer is None else {str(name).lower(): str(value) for name, value in answer.items()}

    def redis_facts(self) -> RedisFacts:
        """See the protocol."""
        info = self.server_info()
        masters: int | None = 0
        if info is not None and info.get("cluster_enabled") == "1":
            with self._connections.use(Role.SERVE) as client:
                masters = _cluster_size(_answer(client, "CLUSTER INFO"))
        return RedisFacts(info=info, denied=self._denied(), masters=masters)

    def _denied(self) -> tuple[str, ...] | None:
        """Rights are looked at when a command is queued; DISCARD then throws all of them away.

        One by one, and on a key that nothing uses: where MULTI itself is refused (an ACL, a proxy) nothing may follow.
        """
        key = self._keys.scratch
        with self._connections.use(Role.SERVE) as pooled, closing(pooled.client()) as client:  # type: ignore[no-untyped-call]
            # Named by bytes: redis-py would read the answer QUEUED as the command's own.
            if isinstance(_answer_of(client, b"MULTI"), Exception):
                return None
            try:
                answers = [
                    (name, _answer_of(client, name.encode(), *[key if part == "k" else part for part in rest]))
                    for name, *rest in _NEEDED
                ]
            finally:
                _answer_of(client, b"DISCARD")
                client.connection.disconnect()  # where DISCARD is refused it must not go back into the pool
        return tuple(name for name, answer in answers if isinstance(answer, rx.NoPermissionError))

    def wrong_types(self, levels: Iterable[Level]) -> dict[str, str]:
        """See the protocol."""
        levels = list(levels)
        queues = sorted({level.queue for level in levels})
        expected = {self._keys.queues: b"set", self._keys.install: b"string"}
        expected |= {self._keys.levels(queue): b"set" for queue in queues}
        named = chain.from_iterable((self._keys.ready(level), self._keys.delayed(level)) for level in levels)
        expected |= {key: expected_type(key) for key in chain(named, map(self._keys.generation, queues))}
        with self._connections.use(Role.SERVE) as client:
            types = ask_all(client, [("TYPE", key) for key in expected])
        pairs = zip(expected.items(), types, strict=True)
        return {key: kind.decode() for (key, wanted), kind in pairs if kind not in {wanted, b"none"}}

    def ready_sample(self, level: Level, size: int) -> Sample:
        """See the protocol."""
        key = self._keys.ready(level)
        answers = self._unless_wrong([("LRANGE", key, -size, -1), ("LLEN", key)])
        return Sample(tuple(reversed(answers[0])), int(answers[1])) if answers else Sample()

    def delayed_sample(self, level: Level, size: int) -> Sample:
        """See the protocol."""
        key = self._keys.delayed(level)
        answers = self._unless_wrong([("ZRANGE", key, 0, size - 1, "WITHSCORES"), ("ZCARD", key)])
        if not answers:
            return Sample()
        flat, length = answers
        return Sample(tuple(flat[::2]), int(length), tuple(float(score) for score in flat[1::2]))

    def _unless_wrong(self, commands: list[Command]) -> list[Any]:
        try:
            with self._connections.use(Role.SERVE) as client:
                return ask_all(client, commands)
        except WrongType:  # ``wrong_types`` names it
            return []

    def remove(self, level: Level, *, ready: Collection[bytes], delayed: Collection[bytes], within: int) -> int:
        """See the protocol."""
        key, gone = self._keys.ready(level), 0
        with self._connections.use(Role.SERVE) as client:
            for some in chunks(list(ready), CHUNK):
                # LREM of what is not there reads the whole list, however long: look for it in the sampled end first.
                looks: list[Any] = [("LPOS", key, entry, "RANK", -1, "COUNT", 0, "MAXLEN", within) for entry in some]
                copies = [len(found or ()) for found in ask_all(client, [*looks, ("LLEN", key)])[:-1]]
                removals: list[Any] = [("LREM", key, -n, e) for e, n in zip(some, copies, strict=True) if n]
                gone += sum(ask_all(client, removals)) if removals else 0
            for some in chunks(list(delayed), CHUNK):
                gone += ask(client, "ZREM", self._keys.delayed(level), *some)
        return gone


def _answer(client: redis.Redis, command: str) -> Any:
    """The answer, or None where Redis does not know the command, or not for this user."""
    try:
        return ask(client, command)
    except (rx.NoPermissionError, rx.ResponseError) as refused:
        if isinstance(refused, rx.ReadOnlyError | rx.AuthenticationError):
            raise
        return None


def _answer_of(client: redis.Redis, name: bytes, *rest: str) -> Any:
    """The answer, or the error that it is."""
    try:
        return client.execute_command(name, *rest)  # type: ignore[no-untyped-call]
    except rx.ResponseError as refused:
        return refused


def _cluster_size(answer: Any) -> int | None:
    if isinstance(answer, dict):
        size = answer.get("cluster_size")
        return None if size is None else int(size)
    return None
