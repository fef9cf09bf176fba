"""The release before: it does not know the task ``brand_new``."""

from __future__ import annotations

from tandemq import TandemQ
from tests import probe

app = TandemQ()


@app.task(name="known")
def known(n: int = 0) -> None:
    with probe.running():
        pass
