"""Everything that is done to the servers and to the network before them: a table of names and methods.

A method does the fault, ends it, and answers its evidence in words, or "" if the fault did not come about; it never
takes the product's word for it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from tests.chaos.faults_servers import ServerFaults
from tests.chaos.site import wait

#: The end of a packet that commits, and COMMIT as a packet of its own (0x03 is COM_QUERY).
COMMITS = (b";commit", b"\x03commit")


class Faults(ServerFaults):
    """All that one machine allows."""

    def table(self) -> dict[str, Callable[[], str]]:
        """Name, with its number in docs/reliability.md, to what does it."""
        lost = {
            f"F9 answer lost: {what}": self._net(proxies, "swallow", patterns)
            for what, proxies, patterns in (
                ("COMMIT", ["mysql"], COMMITS),
                ("INSERT that commits by itself", ["mysql"], [b"insert into tandemq_tasks"]),
                ("BRPOP", ["redis"], [b"brpop"]),
                ("push", ["redis", "producers"], [b"lpush", b"rpush", b"zadd"]),
                ("Lua script", ["redis"], [b"evalsha"]),
            )
        }
        table = lost | {
            "F4 kill -9 of Redis, empty restart": self.redis_killed,
            "F4 FLUSHALL, three times running": self.flushed,
            "F4 the delayed ids are gone": self.delayed_lost,
            "F5 Redis restored from an old snapshot": self.old_snapshot,
            "F6/F7 two masters, then failover without the last writes": self.failover,
            "F8 Redis out of memory": self.out_of_memory,
            "F8 Redis is a read-only replica": self.read_only_replica,
            "F8 Redis wants a password": self.no_auth,
            "F8 Redis busy with a script": self.busy,
            "F10 request lost: COMMIT": self._net(["mysql"], "stop_before", COMMITS),
            "F10 request lost: BRPOP, push": self._net(["redis", "producers"], "stop_before", [b"brpop", b"lpush"]),
            "F10 every connection reset": self.reset,
            "F11 black hole before Redis": lambda: self._black_hole("redis", "producers"),
            "F11 black hole before MySQL": lambda: self._black_hole("mysql"),
            "F12 slow network": self.slow,
            "F14 all sessions killed": self.sessions_killed,
            "F14 MySQL read-only": self.mysql_read_only,
            "F14 too many connections": self.too_many_connections,
            "F17 a client holds row locks": self.rows_locked,
            "F17 SIGSTOP of Redis": lambda: self._stopped(self._site.redis),
        }
        if self._site.owns_mysql:
            table |= {
                "F13 kill -9 of mysqld": self.mysql_killed,
                "F17 SIGSTOP of mysqld": lambda: self._stopped(self._site.mysql),
            }
        return table

    # the network

    def reset(self) -> str:
        before = self._cut("mysql", "redis", "producers")
        proxies = self._proxies("mysql", "redis", "producers")
        wait(lambda: sum(proxy.connections for proxy in proxies) > before, 5.0)
        anew = sum(proxy.connections for proxy in proxies) - before
        return f"{anew} connections made anew" if anew else ""

    def slow(self) -> str:
        proxies = self._proxies("mysql", "redis", "producers")
        before = sum(proxy.hits for proxy in proxies)
        delay_s = self._rng.choice([0.02, 0.2])
        for proxy in proxies:
            proxy.hold(b"", delay_s, 10**9)
        time.sleep(2 * self._hold_s())
        for proxy in proxies:
            proxy.disarm()
        hits = sum(proxy.hits for proxy in proxies) - before
        return f"{hits} requests, {delay_s:g} s each" if hits else ""

    def _net(self, names: list[str], action: str, patterns: list[bytes] | tuple[bytes, ...]) -> Callable[[], str]:
        def strike() -> str:
            proxies = self._proxies(*names)
            before = sum(proxy.hits for proxy in proxies)
            for proxy in proxies:
                for pattern in patterns:
                    getattr(proxy, action)(pattern, times=3)
            wait(lambda: sum(proxy.hits for proxy in proxies) - before >= 3, 6.0)
            for proxy in proxies:
                proxy.disarm()
            struck = sum(proxy.hits for proxy in proxies) - before
            return f"{struck} times" if struck else ""

        return strike

    def _black_hole(self, *names: str) -> str:
        proxies = self._proxies(*names)
        for proxy in proxies:
            proxy.silent = True
        # Longer than a Redis command may take; longer than a MySQL one only in the long run.
        time.sleep(12.0 if self._long else 4.0)
        with socket.create_connection(("127.0.0.1", proxies[0].port), timeout=1.0) as caller:
            # A Redis would answer this, and a MySQL greets without being asked.
            caller.sendall(b"PING\r\n")
            said = ""
            try:
                caller.recv(1)
            except TimeoutError:
                said = "no answer"
        for proxy in proxies:
            proxy.silent = False
        return said
