"""Handlers whose errors, results and log lines quote the passwords of both servers, as a careless one would."""

from __future__ import annotations

import logging
import os
import threading
import urllib.parse

from tandemq import RetryPolicy, TandemQ

app = TandemQ()
URLS = [os.environ.get(f"TANDEMQ_{name}_URL", "") for name in ("DATABASE", "REDIS")]
PASSWORDS = [urllib.parse.urlsplit(url).password or "" for url in URLS]
ALL = " ".join([*URLS, *PASSWORDS, *map(urllib.parse.unquote, PASSWORDS)])


@app.task(name="quotes", retry=RetryPolicy(max_retries=3, backoff=3600))
def quotes(note: str = "") -> None:
    logging.getLogger("shop").warning("cannot reach %s", ALL)
    logging.getLogger("shop").warning("%d", ALL)
    thread = threading.Thread(target=_breaks)
    thread.start()
    thread.join()
    try:
        raise ConnectionError(ALL)
    except ConnectionError as cause:
        raise RuntimeError(f"login failed: {ALL}") from cause


def _breaks() -> None:
    raise RuntimeError(ALL)
