"""Judges what Redis says: whether it keeps ids, takes writes, and lets us send what we need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tandemq.broker.facts import RedisFacts
from tandemq.doctor.finding import Finding, Grade

MIN_VERSION = (6, 2)
#: Used memory over this share of maxmemory: soon every push is refused.
NEAR_FULL = 0.9
_KEEP = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf (or in the provider's console)"


def judge(facts: RedisFacts) -> Iterator[Finding]:
    """Everything that needs no look into the lists."""
    info = facts.info
    yield _permissions(facts.denied)
    if info is None:
        says = "INFO is refused: version, memory and role are not known"
        yield Finding("redis.info", Grade.UNKNOWN, says, "ACL SETUSER <user> +info")
        yield eviction(None)
        return
    yield _version(info)
    yield eviction(info)
    yield _memory(info)
    yield _role(info)
    yield _cluster(facts)
    yield _persistence(info)


def eviction(info: Mapping[str, str] | None) -> Finding:
    """Whether Redis may throw ids away when it is full."""
    name, policy = "redis.eviction", (info or {}).get("maxmemory_policy", "")
    if info is None or not policy:
        says = "Redis does not tell maxmemory-policy, wanted noeviction"
        return Finding(name, Grade.UNKNOWN, says, "look it up in the provider's console")
    if policy == "noeviction":
        return Finding(name, Grade.OK, "maxmemory-policy is noeviction")
    evicted = info.get("evicted_keys", "0")
    if _number(info, "maxmemory"):
        why = f"when it is full ids of tasks are thrown away ({evicted} keys were, of whatever kind)"
        return Finding(name, Grade.FAULT, f"maxmemory-policy is {policy}, wanted noeviction: {why}", _KEEP)
    why = "ids of tasks would be thrown away as soon as somebody sets maxmemory, which is 0 now"
    return Finding(name, Grade.WARNING, f"maxmemory-policy is {policy}, wanted noeviction: {why}", _KEEP)


def _permissions(denied: tuple[str, ...] | None) -> Finding:
    name = "redis.permissions"
    if denied is None:
        return Finding(name, Grade.UNKNOWN, "MULTI is refused, so what this user may send cannot be tried harmlessly")
    if not denied:
        return Finding(name, Grade.OK, "every command that tandemq needs is allowed")
    says = f"this user may not send {', '.join(denied)} to the keys of the namespace, wanted all of them"
    rights = " ".join(f"+{command.lower()}" for command in denied)
    return Finding(name, Grade.FAULT, says, f"ACL SETUSER <user> {rights} ~<namespace>:*")


def _version(info: Mapping[str, str]) -> Finding:
    text = info.get("redis_version", "")
    product = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {text}"
    numbers = tuple(int(n) for n in re.findall(r"\d+", text)[:2])
    if not numbers:
        return Finding("redis.version", Grade.UNKNOWN, "Redis does not tell its version, wanted 6.2 or newer")
    if numbers < MIN_VERSION:
        says = f"the server is {product}, wanted Redis 6.2 or newer: it cannot pop batches"
        return Finding("redis.version", Grade.FAULT, says, "upgrade to Redis 6.2 or newer, or Valkey")
    return Finding("redis.version", Grade.OK, f"the server is {product}")


def _memory(info: Mapping[str, str]) -> Finding:
    name, used, most = "redis.memory", _number(info, "used_memory"), _number(info, "maxmemory")
    if used is None or most is None:
        return Finding(name, Grade.UNKNOWN, "Redis does not tell how much memory it uses")
    if not most:
        return Finding(name, Grade.OK, f"{used} bytes are used, without a limit (maxmemory is 0)")
    says = f"{used} of {most} bytes (maxmemory) are used"
    if used < NEAR_FULL * most:
        return Finding(name, Grade.OK, says)
    why = f"wanted less than {NEAR_FULL:.0%}: at the limit every push is refused, and tasks start late"
    return Finding(name, Grade.WARNING, f"{says}, {why}", f"CONFIG SET maxmemory {2 * most}, or find what fills it")


def _role(info: Mapping[str, str]) -> Finding:
    role = info.get("role", "")
    if not role:
        return Finding("redis.role", Grade.UNKNOWN, "Redis does not tell its role, wanted master")
    if role == "master":
        return Finding("redis.role", Grade.OK, "the server is a master")
    master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
    says = f"the server is a replica of {master}, wanted a master: it takes no writes"
    return Finding("redis.role", Grade.FAULT, says, "let TANDEMQ_REDIS_URL lead to the master")


def _cluster(facts: RedisFacts) -> Finding:
    name = "redis.cluster"
    if facts.masters is None:
        return Finding(name, Grade.UNKNOWN, "the server is part of a Redis Cluster that does not tell its size")
    if facts.masters > 1:
        says = (
            f"the server is one of {facts.masters} masters of a Redis Cluster, wanted one: queues of other slots fail"
        )
        return Finding(name, Grade.FAULT, says, "use a single master, or one reached through a proxy that routes")
    text = "the server is a Redis Cluster of one master" if facts.masters else "the server is no Redis Cluster"
    return Finding(name, Grade.OK, text)


def _persistence(info: Mapping[str, str]) -> Finding:
    is_logged = info.get("aof_enabled") == "1"
    says = f"appendonly is {'on' if is_logged else 'off'}: either will do, all that lies in Redis is rebuilt from MySQL"
    return Finding("redis.persistence", Grade.INFO, says)


def _number(info: Mapping[str, str], name: str) -> int | None:
    text = info.get(name, "")
    return int(text) if text.isdigit() else None
