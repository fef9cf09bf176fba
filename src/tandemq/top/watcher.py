"""Looks and acts in a thread of its own, so that keys answer at once whatever the servers do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from tandemq.app import TandemQ
from tandemq.core.errors import TandemQError
from tandemq.top.drawing import Frame
from tandemq.top.model import Order, Replay, SetPause
from tandemq.top.picture import Painter, Picture

#: A look that takes long is not repeated at once: of the time at most so much goes into looking.
BUSY_SHARE = 0.25
CLOSE_S = 2.0
REASON = "tandemq top"


class Watcher:
    """``picture``, ``frame`` and ``take_news`` are for another thread than the one that looks."""

    def __init__(self, app: TandemQ, interval_s: float, say: Callable[[BaseException], str]) -> None:
        self._app, self._clock, self._interval_s, self._say = app, app.clock, interval_s, say
        self._painter = Painter(app)
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._news: SimpleQueue[str] = SimpleQueue()
        self._over = self._is_working = False
        self._trouble, self._trouble_at = "", 0.0
        self._thread = threading.Thread(target=self._run, name="tandemq-top", daemon=True)
        self.picture: Picture | None = None
        #: Somebody looks at the dead letters: they are read with every look.
        self.wants_dead = False

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End; what is being done right now may be given up."""
        self._over = True
        self._orders.put(None)
        self._thread.join(CLOSE_S)

    def give(self, order: Order) -> None:
        """Have it carried out, and look again."""
        self._is_working = True
        self._orders.put(order)

    def look_now(self) -> None:
        """Do not wait for the next turn."""
        self._orders.put(None)

    def take_news(self) -> str | None:
        """What became of an order, once."""
        try:
            return self._news.get_nowait()
        except Empty:
            return None

    @property
    def frame(self) -> Frame:
        """What stands around the rows at this moment."""
        trouble = self._trouble
        since = self._clock.monotonic() - self._trouble_at if trouble else 0.0
        settings = self._app.settings
        name = "embedded" if settings.is_embedded else settings.namespace
        return Frame(name, trouble, since, self._is_working)

    def _run(self) -> None:
        while not self._over:
            began = self._clock.monotonic()
            self._look()
            took_s = self._clock.monotonic() - began
            try:
                order = self._orders.get(timeout=max(self._interval_s - took_s, took_s / BUSY_SHARE - took_s, 0.05))
            except Empty:
                continue
            if order is not None:
                self._act(order)
                self._is_working = not self._orders.empty()

    def _look(self) -> None:
        try:
            self.picture = self._painter.paint(dead=self.wants_dead)
            self._trouble = ""
        except Exception as wrong:  # whatever it is: the view stays, and says so
            if not self._trouble:
                self._trouble_at = self._clock.monotonic()
            self._trouble = self._say(wrong)

    def _act(self, order: Order) -> None:
        try:
            self._news.put(self._carry_out(order))
        except TandemQError as failed:
            self._news.put(f"failed: {self._say(failed)}")

    def _carry_out(self, order: Order) -> str:
        match order:
            case SetPause(queue, True):
                self._app.pauses.pause(queue, reason=REASON)
                return f"queue {queue} is paused"
            case SetPause(queue, False):
                ended = self._app.pauses.resume(queue, reason=REASON)
                return f"queue {queue} goes on" if ended else f"queue {queue} was not paused"
            case Replay(ids, what):
                answer = self._app.dead.replay(ids, reason=REASON)
                self._painter.forget_dead()
                rest = f", {answer.skipped} were not dead any more" if answer.skipped else ""
                rest += f", {answer.failed} could not be" if answer.failed else ""
                return f"{answer.moved} of {what} are pending again{rest}"
            case _:
                return ""
