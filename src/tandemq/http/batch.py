"""``POST /jobs/batch``: as many tasks as one likes, stored while they arrive, in bounded memory.

A batch is not atomic. Every item is answered, in order; what was stored stays, also when the connection breaks or the
body does. With idempotency keys a batch may be sent again as a whole: what is stored already is answered with 200.

Many clients read nothing before they have sent everything, so the answers wait until then: in memory while they are
few, else in an unnamed temporary file (about 60 bytes a task).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from tempfile import SpooledTemporaryFile, TemporaryFile
from threading import Lock
from typing import Any

from starlette.responses import Response, StreamingResponse

from tandemq.core.body import new_task, parse_json
from tandemq.core.codec import write
from tandemq.core.errors import EnqueueUnknown, InvalidTask, StoreBusy, StoreUnavailable, Unavailable
from tandemq.core.task import NewTask
from tandemq.http.calls import Call
from tandemq.http.items import BrokenBody, Elements, Item, Lines
from tandemq.http.problems import Problem, problem_of, unknown
from tandemq.producer import BATCH, Producer, Stored, Waits

NDJSON, JSON = "application/x-ndjson", "application/json"
#: What is given to a thread at once.
FEED_BYTES = 256 * 1024
#: What is stored at once: as many items as one INSERT takes, or so many bytes.
STORE_BYTES = 1024 * 1024
#: Answers beyond this go to a file.
IN_MEMORY = 1024 * 1024
READ_BYTES = 256 * 1024
#: A batch ends after so many refused items in a row, or bytes of answers: a refusal is a hundred times its item.
MAX_REFUSED, MAX_ANSWER_BYTES = 10_000, 256 * 1024 * 1024
#: Waits for keys that others hold which one batch gets, of 3 s each.
KEY_WAITS = 20
#: One batch at a time is dealt with: each thread that computes slows down the event loop (measured beside four: a POST
#: took 3 ms instead of 20). But whoever waits for the database has his turn no longer than this.
TURN_S = 1.0
_turn = Lock()


class Batch:
    """One batch: bytes in, answers out. Its methods block; no two threads at once."""

    def __init__(self, producer: Producer, media_type: str, limit: int) -> None:
        self._producer = producer
        self.is_array = media_type == JSON
        self._splitter = Elements(limit) if self.is_array else Lines(limit)
        self._waiting: list[Item | BrokenBody] = []
        self._bytes = self._refused = 0
        self._waits = Waits(KEY_WAITS)
        self._is_begun = False
        #: The answer to everything from here on.
        self._away: Problem | None = None
        self.is_broken = False
        self.created = self.existing = self.failed = 0
        self.answers = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed by whoever sends it

    def feed(self, chunk: bytes, *, last: bool = False) -> None:
        """Take a piece of the body and store what is enough for an INSERT; the ``last`` one, whatever is left.

        Raises Problem if nothing is stored and nothing will be: the database is away, or no item could be made out; and
        where answers cannot be kept any more.
        """
        if not self._is_begun:
            with TemporaryFile():  # not found out when there is something to be said of what was stored
                self._is_begun = True
        has_turn = _turn.acquire(timeout=TURN_S)
        try:
            self._feed(chunk, last)
        except OSError as full:
            text = f"the answers cannot be kept ({full.strerror}): {self.created} tasks were stored, perhaps more"
            raise unknown(text) from full
        finally:
            if has_turn:
                _turn.release()

    def _feed(self, chunk: bytes, last: bool) -> None:
        try:
            for item in self._splitter.feed(chunk):
                self._add(item)
            if last and not self.is_broken:
                for item in self._splitter.end():
                    self._add(item)
        except BrokenBody as broken:
            if not self.is_broken:
                self._waiting.append(broken)
                self._store()
        if last:
            self._store()

    @property
    def head(self) -> bytes:
        """What stands before the answers."""
        if not self.is_array:
            return b""
        counts = write({"created": self.created, "existing": self.existing, "failed": self.failed, "items": []})
        return counts.removesuffix("]}").encode()

    @property
    def tail(self) -> bytes:
        """What stands behind them."""
        return b"]}" if self.is_array else b""

    @property
    def _answered(self) -> int:
        return self.created + self.existing + self.failed

    def _add(self, item: Item) -> None:
        if self.is_broken:
            return
        if self._refused >= MAX_REFUSED or self.answers.tell() >= MAX_ANSWER_BYTES:
            self.is_broken = True
            text = "too many items were refused in a row, or answered in all: the items before were dealt with, nothing"
            self._answer(Problem("invalid", f"{text} from here on", field="body", line=item.line, byte=item.at))
            return
        self._waiting.append(item)
        self._bytes += len(item.text or b"")
        if len(self._waiting) >= BATCH or self._bytes >= STORE_BYTES:
            self._store()

    def _store(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        asked: list[NewTask | Problem] = []
        for one in waiting:
            asked.append(self._task(one))
            if self.is_broken:
                break
        first = asked[0] if asked else None
        if self.is_broken and isinstance(first, Problem) and len(asked) == 1 and not self._answered:
            raise first
        stored = iter(self._stored([new for new in asked if isinstance(new, NewTask)]))
        for new in asked:
            self._answer(next(stored) if isinstance(new, NewTask) else new)

    def _task(self, one: Item | BrokenBody) -> NewTask | Problem:
        if isinstance(one, BrokenBody):
            return self._broken(one)
        if one.text is None:
            text = f"the item is {one.size} bytes; the limit is {self._splitter.limit}"
            return Problem("too-large", text, field="body", line=one.line)
        try:
            body = parse_json(one.text, "body")
        except InvalidTask as bad:
            if self.is_array:
                # A quotation mark too few, and all that follows is cut in the wrong places. A line ends where it ends.
                return self._broken(BrokenBody(str(bad), one.at, one.line))
            return Problem("invalid", str(bad), field="body", line=one.line)
        try:
            return new_task(body)
        except InvalidTask as bad:
            return problem_of(bad)

    def _broken(self, broken: BrokenBody) -> Problem:
        self.is_broken = True
        text = f"{broken}: the items before were dealt with, nothing from here on"
        return Problem("invalid", text, field="body", line=broken.line, byte=broken.at)

    def _stored(self, news: Sequence[NewTask]) -> Sequence[Stored | Problem]:
        if self._away is not None:
            return [self._away] * len(news)
        done = self._producer.enqueue_each(news, self._waits)
        problems: dict[int, Problem] = {}  # of one error that is many items', one document
        for one in done:
            if isinstance(one, Exception) and id(one) not in problems:
                problems[id(one)] = problem_of(one)
                is_away = isinstance(one, Unavailable | EnqueueUnknown) and not isinstance(one, StoreBusy)
                if is_away and self._away is None:
                    if not self.created + self.existing and not any(isinstance(other, Stored) for other in done):
                        raise problems[id(one)]
                    self._away = problem_of(StoreUnavailable(f"not tried after: {one}"))
        return [problems[id(one)] if isinstance(one, Exception) else one for one in done]

    def _answer(self, one: Stored | Problem) -> None:
        index = self._answered
        answer: dict[str, Any] = {"index": index}
        if isinstance(one, Problem):
            self.failed += 1
            self._refused += 1
            answer |= {"status": one.status, "problem": one.document()}
        else:
            self._refused = 0
            self.created += one.done.created
            self.existing += not one.done.created
            answer |= {"status": 201 if one.done.created else 200, "id": one.done.id, "id_str": str(one.done.id)}
        text = write(answer)
        self.answers.write((text + "\n" if not self.is_array else "," + text if index else text).encode())


async def enqueue_batch(call: Call) -> Response:
    """200, and an answer for each item: 201 and its id, 200 and the id of a known key, or a problem."""
    call.query()
    batch = Batch(call.api.app.producer, call.require_media_type(NDJSON, JSON), call.api.max_body_bytes)
    try:
        await _take(call, batch)
        size = batch.answers.tell()
        batch.answers.seek(0)
    except BaseException:
        batch.answers.close()
        raise
    head = batch.head
    return StreamingResponse(
        _answers(call, batch, head),
        headers={"Content-Length": str(len(head) + size + len(batch.tail))},
        media_type=JSON if batch.is_array else NDJSON,
    )


async def _take(call: Call, batch: Batch) -> None:
    chunks: list[bytes] = []
    size = 0
    async for chunk in call.stream():
        if batch.is_broken:
            continue  # a client that is still sending does not read yet
        chunks.append(chunk)
        size += len(chunk)
        if size >= FEED_BYTES:
            await call.api.enqueuer.in_bulk(batch.feed, b"".join(chunks))
            chunks, size = [], 0
    await call.api.enqueuer.in_bulk(batch.feed, b"".join(chunks), last=True)


async def _answers(call: Call, batch: Batch, head: bytes) -> AsyncIterator[bytes]:
    try:
        yield head
        while piece := await call.api.app.offload(batch.answers.read, READ_BYTES):
            yield piece
        yield batch.tail
    finally:
        batch.answers.close()
