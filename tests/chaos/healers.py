"""A mover and a reconciler that ask nobody whether they lead: several of these processes are what F18 asks for.

``python -m tests.chaos.healers``, with the settings in the environment.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from tandemq.core import ids
from tandemq.core.clock import SystemClock
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler
from tandemq.service import Loop
from tests.chaos.tasks import app


class _Leading:
    """A store that says yes to whoever asks for a leadership."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def lead(self, *_: Any, **__: Any) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    clock, holder = SystemClock(), ids.worker_id("healer")
    store: Any = _Leading(app.store)
    mover = Mover(store, app.broker, clock, holder, app.settings)
    reconciler = Reconciler(store, app.broker, clock, ids.new_random(), app.settings, holder, lead=False)
    for name, service in (("mover", mover), ("reconciler", reconciler)):
        Loop(service, clock, ids.new_random(), name).start()
    logging.getLogger("tests.chaos").info("healer starts: ")
    threading.Event().wait()


if __name__ == "__main__":
    main()
