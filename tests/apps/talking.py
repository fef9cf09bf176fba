"""Handlers that log, in every way that there is."""

from __future__ import annotations

import logging
import os
import sys
import warnings

from tandemq import NonRetryable, TandemQ, current_task

app = TandemQ()
_log = logging.getLogger("shop.library")


@app.task(name="talk")
def talk(n: int) -> None:
    _log.info("thread %s", n)
    current_task().log.info("own %s", n)


@app.task(name="atalk")
async def atalk(n: int) -> None:
    _log.info("loop %s", n)


@app.task(name="leak")
def leak() -> None:
    """Does with the password what a careless program does."""
    _log.error("connecting to %s", os.environ["TANDEMQ_DATABASE_URL"])
    warnings.warn(f"with {app.settings.database_url}", stacklevel=1)
    try:
        raise ConnectionError(app.settings.database_url)
    except ConnectionError:
        _log.exception("no luck")
    sys.stderr.flush()
    raise NonRetryable("enough")
