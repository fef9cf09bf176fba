"""The demo's application and its one task."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from tandemq.app import TandemQ
from tandemq.core.errors import NonRetryable
from tandemq.core.retry import RetryPolicy
from tandemq.demo.measure import DoesNotParse, is_flaky, measure
from tandemq.handler import current_task

TASK_TYPE = "demo.measure"
#: Keys and tables of the demo's own, beside whatever else lives on the servers.
NAMESPACE, TABLE_PREFIX = "tandemq_demo", "tqdemo_"


def measure_file(name: str, path: str) -> dict[str, Any]:
    """Lines, bytes and functions of a Python file. ``name`` is the same on every machine and seeds the flaky disk."""
    if current_task().attempt == 1 and is_flaky(name):
        raise OSError(f"flaky disk while reading {name}")
    try:
        found = measure(Path(path))
    except DoesNotParse as bad:
        raise NonRetryable(str(bad)) from None
    return {"lines": found.lines, "bytes": found.bytes, "functions": found.functions}


def build(**settings: Any) -> TandemQ:
    """The application in its own namespace; other settings from arguments and the ``TANDEMQ_*`` variables."""
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="<unknown>")
    app = TandemQ(namespace=NAMESPACE, table_prefix=TABLE_PREFIX, **settings)
    app.task(name=TASK_TYPE, retry=RetryPolicy(max_retries=3, backoff=[0.3, 0.6, 1.2]))(measure_file)
    return app
