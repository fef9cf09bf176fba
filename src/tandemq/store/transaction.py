"""An open transaction: steps of SQL in, rows and counts out; several steps travel in one packet.

A round trip costs as much as a small statement. So on MySQL the BEGIN travels with the first step, and the COMMIT with
the last ones (``commit``): a claim is two packets, a finish is one. The server runs the statements of a packet in order
and stops at the first error, so a COMMIT is never reached after one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from select import POLLIN, poll
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from tandemq.core.crash import crash_point
from tandemq.core.errors import PayloadTooLarge, StoreRefused
from tandemq.store import errors
from tandemq.store.dialects import MYSQL, Dialect
from tandemq.store.errors import Kind

T = TypeVar("T")
#: The smallest max_allowed_packet that servers are run with: a statement below it needs no question.
SMALL_PACKET = 1024 * 1024
#: Fails unless the step before it found so many rows: a condition inside a packet, without a stored procedure.
_EXPECT = "SET @tandemq_expected = IF({0}() = {1}, 0, (SELECT 1 UNION ALL SELECT 2))"
_MISMATCH_CODE = 1242


class Step(NamedTuple):
    """One statement. With ``expect`` it must find (or match) exactly so many rows, otherwise Mismatch is raised."""

    sql: str
    params: Sequence[Any] = ()
    expect: int | None = None


class Result(NamedTuple):
    """What one statement answered; ``matched``: how many rows a write found (CLIENT_FOUND_ROWS), changed or not."""

    rows: Sequence[Any]
    matched: int
    last_id: int


class Duplicate(Exception):
    """An INSERT met a unique key that exists; the transaction goes on."""


class Unreadable(Exception):
    """What the server answered cannot be read: its statements may have been run, and a COMMIT among them too.

    A text that is no UTF-8 (other programs write rows as well), or a proxy that does not answer every statement.
    """


class Mismatch(Exception):
    """A step matched another number of rows than expected: nothing after it was run, nothing was committed."""


class Tx(ABC):
    """See the module. Every method may raise the driver's errors."""

    __slots__ = ("dialect",)

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    @abstractmethod
    def send(self, *steps: Step) -> list[Result]:
        """Run steps in order, in one packet where the server can."""

    @property
    @abstractmethod
    def known_max_packet(self) -> int:
        """The server's limit in bytes if it is known, else 0."""

    def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[Any]:
        """All rows of a SELECT."""
        return self.send(Step(sql, params))[0].rows

    def one(self, sql: str, params: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        rows = self.rows(sql, params)
        return rows[0] if rows else None

    def write(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a write; how many rows it matched."""
        return self.send(Step(sql, params))[0].matched

    def insert(self, sql: str, params: Sequence[Any]) -> int:
        """Run an INSERT; the driver's lastrowid. Raises Duplicate."""
        try:
            return self.send(Step(sql, params))[0].last_id
        except Exception as cause:
            if errors.classify(cause) is Kind.DUPLICATE:
                raise Duplicate from cause
            raise

    def check_size(self, steps: Sequence[Step]) -> None:
        """PayloadTooLarge if the server would not take these in one packet.

        A server that is sent too much may cut the connection before it says why: asked before, it is a clear answer.
        """
        texts = [p for step in steps for p in step.params if type(p) is str]
        sql = sum([len(step.sql) for step in steps])
        at_most = sql + 8 * sum(map(len, texts))
        limit = self.known_max_packet
        if not limit and at_most >= SMALL_PACKET and self.dialect is MYSQL:
            limit = int(self.one("SELECT @@max_allowed_packet")[0])
        if not limit or at_most < limit:
            return
        size = sql + sum(map(_sent_size, texts))
        if size >= limit:
            raise PayloadTooLarge(
                f"a statement of {size} bytes is needed; the server's max_allowed_packet is {limit}", field="payload"
            )


class CallerTx(Tx):
    """The caller's transaction on the caller's SQLAlchemy connection: step by step, committed by the caller."""

    __slots__ = ("connection",)

    def __init__(self, connection: sa.Connection, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.connection = connection

    def send(self, *steps: Step) -> list[Result]:
        """See ``Tx``."""
        self.check_size(steps)
        return [self._run(step) for step in steps]

    @property
    def known_max_packet(self) -> int:
        """See ``Tx``."""
        return 0

    def _run(self, step: Step) -> Result:
        done = sendable(lambda: self.connection.exec_driver_sql(step.sql, tuple(step.params)))
        if done.returns_rows:
            return _expected(step, Result(done.fetchall(), done.rowcount, 0))
        return _expected(step, Result((), done.rowcount, done.lastrowid))


class OwnTx(Tx):
    """A transaction on a pooled connection of ours. ``writes``: begun by its first step; else each read is its own."""

    __slots__ = ("_crash", "_cursor", "begun", "committing", "info", "over")

    def __init__(self, cursor: Any, info: dict[str, Any], dialect: Dialect, *, writes: bool, crash: str = "") -> None:
        super().__init__(dialect)
        self._cursor, self.info, self._crash = cursor, info, crash
        #: ``begun``: a transaction is open. ``over``: nothing is left to commit. ``committing``: a COMMIT was sent.
        self.begun, self.over, self.committing = False, not writes, False

    @property
    def known_max_packet(self) -> int:
        """See ``Tx``."""
        return int(self.info.get("max_packet", 0))

    def send(self, *steps: Step) -> list[Result]:
        """See ``Tx``."""
        return self._checked(steps, commit=False)

    def commit(self, *steps: Step) -> list[Result]:
        """Run the last steps and commit, in one packet; a single step that is all there is commits by itself."""
        if self._crash:
            crash_point(self._crash)
        self.committing = True
        try:
            results = self._checked(steps, commit=True)
        except Mismatch:
            self.committing = False
            raise
        self.over = True
        return results

    def _checked(self, steps: Sequence[Step], *, commit: bool) -> list[Result]:
        if steps:
            self.check_size(steps)
        return sendable(lambda: self._packet(steps, commit=commit))

    def _packet(self, steps: Sequence[Step], *, commit: bool) -> list[Result]:
        texts, params, wanted = self._compose(steps, commit=commit)
        if not texts:
            return []
        results: list[Result] = []
        cursor = self._cursor
        try:
            cursor.execute(";".join(texts), params)
            results.append(_result(cursor))
            while cursor.nextset():
                results.append(_result(cursor))
        except UnicodeDecodeError as cause:
            raise Unreadable(str(cause)) from cause
        except Exception as cause:
            if errors.code(cause) == _MISMATCH_CODE:
                raise Mismatch from cause
            raise
        if len(results) != len(texts):  # a proxy that does not know packets of several statements
            raise Unreadable(f"the server answered {len(results)} of {len(texts)} statements sent in one packet")
        return [results[at] for at in wanted]

    def _compose(self, steps: Sequence[Step], *, commit: bool) -> tuple[list[str], list[Any], list[int]]:
        """The statements of a packet, their parameters, and which of the statements are the steps."""
        texts: list[str] = []
        params: list[Any] = []
        wanted: list[int] = []
        alone = commit and len(steps) == 1 and steps[0].expect is None
        if not self.begun and not self.over and steps and not alone:
            texts.append("BEGIN")
            self.begun = True
        for step in steps:
            wanted.append(len(texts))
            texts.append(step.sql)
            params += step.params
            if step.expect is not None:
                counter = "FOUND_ROWS" if step.sql.startswith("SELECT") else "ROW_COUNT"
                texts.append(_EXPECT.format(counter, step.expect))
        if commit and self.begun:
            texts.append("COMMIT")
        return texts, params, wanted


class SqliteTx(OwnTx):
    """The same on SQLite, begun by whoever opens it: there are no packets, and no round trips to save."""

    __slots__ = ()

    def _packet(self, steps: Sequence[Step], *, commit: bool) -> list[Result]:
        results = []
        for step in steps:
            self._cursor.execute(step.sql, tuple(step.params))
            results.append(_expected(step, _result(self._cursor)))
        if commit:
            self._cursor.execute("COMMIT")
        return results


def _expected(step: Step, result: Result) -> Result:
    """What ``_EXPECT`` asks, where each step is answered before the next is sent."""
    if step.expect not in {None, len(result.rows) if step.sql.startswith("SELECT") else result.matched}:
        raise Mismatch
    return result


def _result(cursor: Any) -> Result:
    if cursor.description is None:
        return Result((), cursor.rowcount, cursor.lastrowid or 0)
    return Result(cursor.fetchall(), cursor.rowcount, 0)


def sendable(send: Callable[[], T]) -> T:
    """StoreRefused for what the driver could not even send: a lone surrogate, or an integer beyond 64 bits."""
    try:
        return send()
    except (UnicodeEncodeError, OverflowError) as cause:
        raise StoreRefused(f"a value cannot be sent to the database: {cause}") from cause


def _sent_size(text: str) -> int:
    """Bytes of a text once the driver has escaped it."""
    return 2 + len(text.encode("utf-8", "replace")) + sum(text.count(c) for c in "\"\\'\n\r\x00\x1a")


def has_hung_up(connection: Any) -> bool:
    """Whether the server has closed (or spoken on) an idle MySQL connection; without a round trip.

    A statement sent into a connection that a restart has closed is lost with its answer, and an INSERT that may have
    been run must not be sent again. An idle connection has nothing to say: what can be read is an end or a farewell.
    """
    try:
        # PyMySQL has a socket (None once closed), mysqlclient a descriptor.
        fd = connection._sock.fileno() if hasattr(connection, "_sock") else connection.fileno()
    except Exception:  # whatever a driver raises of a closed connection
        return True
    if fd < 0:
        return True
    look = poll()
    look.register(fd, POLLIN)
    return bool(look.poll(0))
