"""The release after: it knows ``brand_new`` as well."""

from __future__ import annotations

from tandemq import TandemQ
from tests import probe

app = TandemQ()


@app.task(name="known")
def known(n: int = 0) -> None:
    with probe.running():
        pass


@app.task(name="brand_new")
def brand_new(n: int = 0) -> int:
    with probe.running():
        return n
