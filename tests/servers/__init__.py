"""Private real servers for tests: MariaDB or MySQL, and Redis, on free ports, never the machine's own services.

They are looked for on PATH, in the usual sbin folders, then unpacked under ``.cache/servers/root`` (see
``dev/provide_servers.sh``). ``TANDEMQ_TEST_DATABASE_URL`` and ``TANDEMQ_TEST_REDIS_URL`` name servers that run
elsewhere. Every process started here dies with the test run (see ``tests.reaper``).
"""

from tests.servers.mysql import ExternalMySQL, MySQLServer
from tests.servers.process import Server, free_port
from tests.servers.programs import ROOT, MissingServer, find, missing
from tests.servers.redis_server import ExternalRedis, RedisServer

__all__ = [
    "ROOT",
    "ExternalMySQL",
    "ExternalRedis",
    "MissingServer",
    "MySQLServer",
    "RedisServer",
    "Server",
    "find",
    "free_port",
    "missing",
]
