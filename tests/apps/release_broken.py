"""A release whose module of tasks cannot be imported."""

from __future__ import annotations

from tandemq import TandemQ

app = TandemQ(imports=["tests.apps.release_unfinished"])
