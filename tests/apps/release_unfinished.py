"""Imports what is not installed here."""

from __future__ import annotations

import a_package_that_was_forgotten

from tests.apps.release_broken import app


@app.task(name="brand_new")
def brand_new(n: int = 0) -> int:
    return int(a_package_that_was_forgotten.compute(n))
