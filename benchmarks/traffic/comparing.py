"""What tandemq sends per batch and the ceiling does not, or the other way round."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from benchmarks.traffic.grouping import KINDS, OTHER, by_kind
from benchmarks.traffic.normalise import redis_command
from benchmarks.traffic.record import Recorded

Signature = tuple[str, ...]
#: A finish of several batches at once: matched in pairs, and one DELETE for each.
_PAIRED = ("AND (id, lease_token) IN ((N, N)..)", "AND lease_token = N")
_DELETE_CLAIM = "DELETE FROM tandemq_claims WHERE lease_token = N"
#: Commands that the ceiling does not send: connection set-up, mover, reconciler, generations, the benchmark itself.
REDIS_LEFT_OUT = re.compile(
    r"(CLIENT|HELLO|SELECT|PING|ECHO|INFO|COMMAND|SCAN|MEMORY|FLUSHALL|MONITOR|SMEMBERS|LLEN|LRANGE|ZCARD|SCRIPT)\b"
    r"|(GET|SET) \S*(install|generation|epoch|writable)"
    r"|(EVAL|EVALSHA) .*:(delayed:|generation)",
    re.DOTALL,
)
#: Sent by a producer: compared by how many there are per call. The others are a worker's.
PRODUCER = ("LPUSH", "SADD", "ZADD")


def differences(tandemq: Recorded, ceiling: Recorded) -> list[str]:
    """Readable lines; none if both send the same per batch."""
    return [*_sql(tandemq, ceiling), *_redis(tandemq, ceiling)]


def _sql(tandemq: Recorded, ceiling: Recorded) -> list[str]:
    ours, theirs = _kinds(tandemq), _kinds(ceiling)
    found = []
    for kind in (*KINDS, OTHER):
        mine, other = ours.get(kind, Counter()), theirs.get(kind, Counter())
        if kind == OTHER:
            found += [line for one in mine for line in _extra(tandemq.side, one)]
            found += [line for one in other for line in _extra(ceiling.side, one)]
            continue
        allowed = set(other)
        if kind == "finish":
            allowed |= {without_delete(one) for one in other}
        for side, counts in ((tandemq.side, mine), (ceiling.side, other)):
            if not counts:
                found.append(f"SQL, {kind}: {side} sent no such transaction")
        strange = [one for one in mine if one not in allowed]
        lacking = [one for one in other if one not in mine]
        for one in strange:
            found += _diff(kind, one, mine[one], nearest(one, other))
        if not strange:
            found += [line for one in lacking for line in _extra(f"{ceiling.side} ({kind})", one)]
    return found


def _kinds(recorded: Recorded) -> dict[str, Counter[Signature]]:
    kinds = by_kind(recorded.sql)
    if "finish" in kinds:
        plain: Counter[Signature] = Counter()
        for one, count in kinds["finish"].items():
            plain[of_one_batch(one)] += count
        kinds["finish"] = plain
    return kinds


def of_one_batch(signature: Signature) -> Signature:
    """A finish of several batches as if it had been of one: there may be any number of tokens in it."""
    if not any(_PAIRED[0] in packet for packet in signature):
        return signature
    out: list[str] = []
    for packet in signature:
        kept: list[str] = []
        for statement in packet.replace(*_PAIRED).split("; "):
            if statement != _DELETE_CLAIM or not any(_DELETE_CLAIM in one for one in (*out, *kept)):
                kept.append(statement)
        if kept:
            out.append("; ".join(kept))
    return tuple(out)


def without_delete(signature: Signature) -> Signature:
    """The finish of a part of a batch: its claims row stays."""
    parts = ["; ".join(s for s in packet.split("; ") if s != _DELETE_CLAIM) for packet in signature]
    return tuple(part for part in parts if part)


def nearest(signature: Signature, others: Iterable[Signature]) -> Signature:
    """The one that has most packets in common; empty if there is none."""
    return max(others, key=lambda one: len(set(one) & set(signature)), default=())


def _diff(kind: str, mine: Signature, count: int, other: Signature) -> list[str]:
    head = f"SQL, {kind}: tandemq sends {len(mine)} packets, the ceiling {len(other)} (seen {count} times):"
    lines = [f"  - only tandemq: {packet}" for packet in _minus(mine, other)]
    lines += [f"  + only ceiling: {packet}" for packet in _minus(other, mine)]
    return [head, *(lines or ["  the same packets in another order or number"])]


def _minus(one: Signature, other: Signature) -> list[str]:
    return list((Counter(one) - Counter(other)).elements())


def _extra(side: str, signature: Signature) -> list[str]:
    return [f"SQL: only {side} sends", *(f"  {packet}" for packet in signature)]


def _redis(tandemq: Recorded, ceiling: Recorded) -> list[str]:
    ours, theirs = _rates(tandemq), _rates(ceiling)
    found = []
    for command in sorted(set(ours) | set(theirs)):
        mine, other = ours.get(command, 0), theirs.get(command, 0)
        if mine != other:
            found.append(f"Redis, per call or batch: tandemq {mine}, ceiling {other}: {command[:300]}")
    return found


def _rates(recorded: Recorded) -> dict[str, int]:
    """Command -> how many per producer's call; a worker's command counts 1 if it came at all."""
    commands = Counter(filter(None, map(redis_command, recorded.redis)))
    rates = {}
    for command, count in commands.items():
        if REDIS_LEFT_OUT.match(command):
            continue
        rate = round(count / recorded.calls) if command.startswith(PRODUCER) else 1
        if rate:  # sent once or twice in a process, such as the names of new queues: part of no call
            rates[command] = rate
    return rates
