"""The users of deploy/mysql and deploy/redis, made as the files say, for other databases, prefixes and namespaces."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pymysql
import redis

from tandemq.core.settings import Settings
from tandemq.store.migrate import migrate, statements
from tests.servers import ROOT

USERS_SQL, GRANTS_SQL = ROOT / "deploy/mysql/users.sql", ROOT / "deploy/mysql/grants.sql"
USERS_ACL = ROOT / "deploy/redis/users.acl"
LEAST_PRIVILEGE = os.environ.get("TANDEMQ_TEST_LEAST_PRIVILEGE", "") not in {"", "0"}


def password(role: str) -> str:
    """Of ``app``, ``migrate``, ``read`` (and ``admin`` of Redis), in tests."""
    return f"pw{role}7"


def filled(text: str) -> str:
    """A file with passwords put in, as its header says."""
    return re.sub(r"CHANGE-ME-([A-Z]+)", lambda found: password(found[1].lower()), text)


def run_sql(root_url: str, path: Path, *, prefix: str = "tandemq_") -> None:
    """Run one of the SQL files as an administrator on the database of this URL."""
    parts = urlsplit(root_url)
    database = parts.path.lstrip("/")
    text = filled(path.read_text())
    text = text.replace("`tandemq_", f"`{prefix}").replace("`tandemq`", f"`{database}`")
    login = {"host": parts.hostname, "port": parts.port or 3306, "user": parts.username or "root"}
    connection = pymysql.connect(**login, password=parts.password or "", autocommit=True)
    try:
        with connection.cursor() as cursor:
            for statement in statements(text):
                cursor.execute(statement)
    finally:
        connection.close()


def database_url(root_url: str, role: str) -> str:
    """The same database as the user of this role."""
    parts = urlsplit(root_url)
    return parts._replace(netloc=f"tandemq_{role}:{password(role)}@{parts.hostname}:{parts.port}").geturl()


def administrator(url: str) -> str:
    """The same database (or Redis) as an administrator, for what a test does by its own hand."""
    return re.sub(r"//tandemq[\w.]+:\w+@", "//" if url.startswith("redis") else "//root@", url)


def is_limited(settings: Settings) -> bool:
    """Whether these are the application's users."""
    return urlsplit(settings.database_url).username == "tandemq_app"


def own_table(sql: Callable[..., object], name: str) -> None:
    """Let the application write to a table of its own beside ours. ``sql`` runs a statement."""
    if LEAST_PRIVILEGE:
        sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO 'tandemq_app'@'%'")


def acl_rules(user: str, namespace: str = "tandemq") -> list[str]:
    """What the ACL file says of a user, for another namespace."""
    lines = filled(USERS_ACL.read_text()).replace("~tandemq:", f"~{namespace}:").splitlines()
    (rules,) = (line.split()[2:] for line in lines if line.startswith(f"user {user} "))
    return rules


def broker_url(plain_url: str, namespace: str, user: str = "tandemq") -> str:
    """The same Redis as the user of this namespace, who is made for it."""
    parts = urlsplit(plain_url)
    if parts.username:
        return plain_url
    name = f"{user}.{namespace}"
    client = redis.Redis.from_url(plain_url)
    client.execute_command("ACL", "SETUSER", name, "reset", *acl_rules(user, namespace))
    with contextlib.suppress(redis.ResponseError):  # a server that keeps no users in a file
        client.execute_command("ACL", "SAVE")
    client.close()
    role = "read" if user.endswith("_read") else "app"
    return parts._replace(netloc=f"{name}:{password(role)}@{parts.hostname}:{parts.port}").geturl()


def prepared(settings: Settings) -> Settings:
    """With the tables made. TANDEMQ_TEST_LEAST_PRIVILEGE=1: by the user that may, and settings of those that may not.

    Servers that the settings do not name as an administrator, or that are no real ones, are left as they are.
    """
    root = urlsplit(settings.database_url)
    if not LEAST_PRIVILEGE or not root.scheme.startswith("mysql") or root.username != "root":
        migrate(settings)
        return settings
    return limited(settings)


def limited(settings: Settings) -> Settings:
    """Settings of the application's users, in a database that the migrating user has made the tables in."""
    root_url, prefix = settings.database_url, settings.table_prefix
    run_sql(root_url, USERS_SQL)
    migrate(replace(settings, database_url=database_url(root_url, "migrate")))
    run_sql(root_url, GRANTS_SQL, prefix=prefix)
    redis_url = settings.redis_url
    if urlsplit(redis_url).hostname in {"127.0.0.1", "localhost"} and urlsplit(redis_url).port != 1:
        redis_url = broker_url(redis_url, settings.namespace)
    return replace(settings, database_url=database_url(root_url, "app"), redis_url=redis_url)


def pool_url(plain_url: str, namespace: str) -> str:
    """As ``prepared``, for a test that has no settings."""
    return broker_url(plain_url, namespace) if LEAST_PRIVILEGE else plain_url
