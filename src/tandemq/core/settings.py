"""One frozen Settings from arguments and ``TANDEMQ_*`` variables; ``check`` lists every fault at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tandemq.core.errors import ConfigurationError

MYSQL_SCHEMES = ("mysql", "mariadb", "mysql+pymysql", "mysql+mysqldb", "mariadb+pymysql", "mariadb+mysqldb")
SQLITE_SCHEMES = ("sqlite",)
REDIS_SCHEMES = ("redis", "rediss", "unix")
PREFIX = "TANDEMQ_"
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


def _var(name: str, default: Any, help_: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"var": PREFIX + name, "help": help_})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings; seconds are floats, sizes bytes. Build with ``load``."""

    database_url: str = _var("DATABASE_URL", "", "SQLAlchemy URL of MySQL/MariaDB (or sqlite:///file)", secret=True)
    redis_url: str = _var("REDIS_URL", "", "redis://, rediss:// or unix:// URL", secret=True)
    namespace: str = _var("NAMESPACE", "tandemq", "first part of every Redis key")
    table_prefix: str = _var("TABLE_PREFIX", "tandemq_", "first part of every table's name")
    app: str = _var("APP", "", "module:attribute of the application, as -A")
    lease_s: float = _var("LEASE_S", 30.0, "how long a claim stands without renewal")
    heartbeat_s: float = _var("HEARTBEAT_S", 5.0, "how often leases are renewed; at most lease / 2")
    reconcile_s: float = _var("RECONCILE_S", 2.0, "pause between two passes of the reconciler")
    mover_s: float = _var("MOVER_S", 0.2, "pause between two turns of the mover")
    grace_s: float = _var("GRACE_S", 30.0, "how long a stopping worker lets tasks run on")
    redis_away_s: float = _var("REDIS_AWAY_S", 5.0, "Redis away for longer: workers take due tasks from MySQL")
    data_dir: str = _var("DATA_DIR", "./.tandemq", "where the embedded default keeps its files")
    embedded: bool = _var("EMBEDDED", True, "0 forbids the embedded default")
    crash: str = _var("CRASH", "", "crash points to arm, point:n:action each (tests only)")
    crash_dir: str = _var("CRASH_DIR", "", "where crash points leave their marks (tests only)")
    max_payload_bytes: int = _var("MAX_PAYLOAD_BYTES", 1024 * 1024, "largest payload accepted")
    max_result_bytes: int = _var("MAX_RESULT_BYTES", 1024 * 1024, "largest result kept")
    unknown_task_s: float = _var("UNKNOWN_TASK_S", 3600.0, "how long a task waits for a worker that knows its type")
    retain_s: float = _var("RETAIN_S", 0.0, "succeeded and cancelled tasks are removed so long after; 0: never")
    retain_dead_s: float = _var("RETAIN_DEAD_S", 0.0, "dead tasks are removed so long after their end; 0: never")
    log_format: str = _var("LOG_FORMAT", "text", "what processes log: 'text', or 'json' for an object a line")
    log_level: str = _var("LOG_LEVEL", "info", "'debug', 'info', 'warning' or 'error'")
    key_conflict: str = _var("KEY_CONFLICT", "error", "same key, other task: 'error', or 'first' to return the first")

    @classmethod
    def load(cls, environ: Mapping[str, str], **overrides: Any) -> Settings:
        """Arguments win over variables, variables over defaults. Raises ConfigurationError with every fault."""
        given: dict[str, Any] = {}
        faults = [
            f"{name}={overrides[name]!r} is no setting"
            for name in sorted(set(overrides) - {f.name for f in fields(cls)})
        ]
        for f in fields(cls):
            if overrides.get(f.name) is not None:
                try:
                    given[f.name] = _typed(overrides[f.name], f.default)
                except TypeError:
                    faults.append(f"{f.name}={overrides[f.name]!r} is no {type(f.default).__name__}")
            elif (text := environ.get(f.metadata["var"], "")) != "":
                try:
                    given[f.name] = _parse(text, f.default)
                except (ValueError, KeyError):
                    faults.append(f"{f.metadata['var']}={text!r} is no {type(f.default).__name__}")
        settings = cls(**given)
        faults += settings._faults()
        if faults:
            raise ConfigurationError("; ".join(faults))
        return settings

    def environ(self) -> dict[str, str]:
        """The variables from which ``load`` makes the same settings, secrets included: for a process to be started."""
        values = {f.metadata["var"]: getattr(self, f.name) for f in fields(self)}
        return {name: str(int(value) if isinstance(value, bool) else value) for name, value in values.items()}

    def secrets(self) -> list[str]:
        """Passwords in the URLs, as they are written there and as they are meant; no log may show them."""
        found = []
        for url in (self.database_url, self.redis_url):
            try:
                parts = urlsplit(url)
            except ValueError:
                continue
            asked = [v for name, v in parse_qsl(parts.query) if re.fullmatch(r"(?i)password|passwd|pwd", name)]
            for secret in filter(None, (parts.password, *asked)):
                found += [secret, unquote(secret)]
        return found

    @property
    def is_embedded(self) -> bool:
        """No URL given: SQLite and a Redis look-alike in ``data_dir``."""
        return not self.database_url and not self.redis_url

    @property
    def data_path(self) -> Path:
        """The data directory as an absolute path."""
        return Path(self.data_dir).absolute()

    def _faults(self) -> list[str]:
        return [*self._url_faults(), *self._name_faults(), *self._time_faults()]

    def _url_faults(self) -> list[str]:
        faults = []
        if bool(self.database_url) != bool(self.redis_url):
            given, missing = ("TANDEMQ_DATABASE_URL", "TANDEMQ_REDIS_URL")
            if self.redis_url:
                given, missing = missing, given
            faults.append(f"{given} is set but {missing} is not; give both, or neither for the embedded default")
        if self.is_embedded and not self.embedded:
            faults.append(
                "TANDEMQ_EMBEDDED=0 forbids the embedded default: set TANDEMQ_DATABASE_URL and TANDEMQ_REDIS_URL"
            )
        if self.database_url:
            faults += _url_faults("TANDEMQ_DATABASE_URL", self.database_url, MYSQL_SCHEMES + SQLITE_SCHEMES)
        if self.redis_url:
            faults += _url_faults("TANDEMQ_REDIS_URL", self.redis_url, REDIS_SCHEMES)
        return faults

    def _name_faults(self) -> list[str]:
        faults = []
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.namespace):
            faults.append(f"TANDEMQ_NAMESPACE={self.namespace!r} must be 1 to 64 of A-Z a-z 0-9 _ . -")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", self.table_prefix):
            faults.append(
                f"TANDEMQ_TABLE_PREFIX={self.table_prefix!r} must be a letter, then up to 31 of A-Z a-z 0-9 _"
            )
        if self.key_conflict not in {"error", "first"}:
            faults.append(f"TANDEMQ_KEY_CONFLICT={self.key_conflict!r} must be 'error' or 'first'")
        for name, allowed in (("log_format", LOG_FORMATS), ("log_level", LOG_LEVELS)):
            if getattr(self, name) not in allowed:
                words = " or ".join(map(repr, allowed))
                faults.append(f"TANDEMQ_{name.upper()}={getattr(self, name)!r} must be {words}")
        return faults

    def _time_faults(self) -> list[str]:
        faults = []
        for name in ("lease_s", "heartbeat_s", "reconcile_s", "mover_s", "redis_away_s", "unknown_task_s"):
            value = getattr(self, name)
            if not 0 < value < 1e9:
                faults.append(f"TANDEMQ_{name.upper()}={value!r} must be a number of seconds > 0")
        for name in ("grace_s", "retain_s", "retain_dead_s"):
            if not 0 <= getattr(self, name) < 1e9:
                faults.append(f"TANDEMQ_{name.upper()}={getattr(self, name)!r} must be a number of seconds >= 0")
        if self.heartbeat_s > self.lease_s / 2:
            faults.append(
                f"TANDEMQ_HEARTBEAT_S={self.heartbeat_s:g} is more than half of TANDEMQ_LEASE_S={self.lease_s:g}:"
                " one late heartbeat would lose every lease"
            )
        for name in ("max_payload_bytes", "max_result_bytes"):
            if not 1 <= getattr(self, name) <= 16_000_000:
                faults.append(f"TANDEMQ_{name.upper()}={getattr(self, name)} must be between 1 and 16000000 bytes")
        return faults


def _typed(value: Any, default: Any) -> Any:
    """An argument as the setting's type; only int -> float is converted, so that "30" or True is no number."""
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        if isinstance(default, str) and isinstance(value, str | Path):
            return str(value)
        raise TypeError
    return value


def _parse(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
    return type(default)(text)


def _url_faults(name: str, url: str, schemes: tuple[str, ...]) -> list[str]:
    scheme = url.split("://", 1)[0] if "://" in url else ""
    if scheme not in schemes:
        return [f"{name} must start with one of {', '.join(s + '://' for s in schemes)}; got {mask(url)!r}"]
    if scheme in SQLITE_SCHEMES or scheme == "unix":
        return []
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return [f"{name} cannot be read; percent-encode special characters of the password ({mask(url)!r})"]
    rest = url.split("://", 1)[1]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # A raw '@', '#', '/' or '?' in a password silently connects to another host (bookwyrm 1098).
    raw = authority.count("@") > 1 or "@" in rest[len(authority) :] or "#" in rest
    if raw or not (parts.hostname or "unix_socket=" in parts.query):
        return [f"{name} has no plain host; percent-encode special characters of the password (@ %40, # %23, / %2F)"]
    return []


def mask(url: str) -> str:
    """The URL with everything before the last ``@`` hidden, but for the scheme, and any password in the query."""
    hidden = re.sub(r"^([a-z+]+://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"(?i)((?:password|passwd|pwd)=)[^&\s'\"]*", r"\1***", hidden)
