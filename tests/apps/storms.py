"""Tasks that fail together, for B43."""

from __future__ import annotations

from tandemq import Exponential, RetryPolicy, TandemQ
from tests import probe

app = TandemQ()
BASE_S, CAP_S, JITTER = 2.0, 20.0, 0.5


@app.task(name="storm", retry=RetryPolicy(backoff=Exponential(BASE_S, 2.0, CAP_S), jitter=JITTER))
def storm(n: int) -> None:
    with probe.running():
        pass
    raise ConnectionError("the service behind it is down")
