"""What schemathesis has to be told to make requests of ours: loaded by it (SCHEMATHESIS_HOOKS), not by the tests.

No check, route or status is left out. Said here is what no schema can say: what a text of at most 255 bytes and what an
HTTP date is, that a task must not end before it may start, which tasks there are, and how JSON lines are written.
"""

from __future__ import annotations

import itertools
import json
import os
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import strategies as st

MAX_BYTES = 255
#: Later than any delay or run_at that is asked for.
LAST = "9999-12-28T00:00:00Z"
OF_WORKERS = {f"POST /jobs/{{id}}/{verb}" for verb in ("heartbeat", "complete", "fail")}


def _cut(text: str) -> str:
    return text.encode()[:MAX_BYTES].decode(errors="ignore")


def _http_date(at: datetime) -> str:
    return format_datetime(at, usegmt=True)


schemathesis.openapi.format("http-date", st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)).map(_http_date))
schemathesis.openapi.format("utf8-255-bytes", st.text(st.characters(codec="utf-8"), min_size=1).map(_cut))


@schemathesis.serializer("application/x-ndjson")
def ndjson(ctx: Any, value: Any) -> bytes:
    """A task a line; texts as they are."""
    if isinstance(value, list):
        return "\n".join(json.dumps(one) for one in value).encode()
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


def _known() -> dict[str, Any]:
    path = os.environ.get("TANDEMQ_FUZZ_KNOWN")
    return json.loads(Path(path).read_text()) if path else {"held": [], "dead": []}


KNOWN = _known()
TURNS = itertools.count()


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Of requests that fit the document: an end after the start; and for every second one a task to work on.

    Ids and tokens that are drawn are those of nothing. What shall not fit the document stays as it is.
    """
    body, label = case.body, case.operation.label
    if case.meta is None or not case.meta.generation.mode.is_positive or not isinstance(body, dict):
        return case
    case.body = body = dict(body)  # schemathesis makes others of the same object
    if label == "POST /jobs" and _ends_early(body):
        body["expires"] = LAST
    if next(TURNS) % 2:
        if label in OF_WORKERS and KNOWN["held"]:
            task_id, body["lease_token"] = KNOWN["held"].pop()
            case.path_parameters = {"id": task_id}
            body.pop("worker_id", None)
        elif label == "POST /jobs/{id}/replay" and KNOWN["dead"]:
            case.path_parameters = {"id": KNOWN["dead"].pop()}
    return case


def _ends_early(body: dict[str, Any]) -> bool:
    now = datetime.now(UTC)
    start, end = now, body.get("expires")
    if end is None:
        return False
    if body.get("run_at") is not None:
        start = max(start, datetime.fromisoformat(body["run_at"]))
    if body.get("delay") is not None:
        start += timedelta(seconds=body["delay"])
    ends_at = datetime.fromisoformat(end) if isinstance(end, str) else now + timedelta(seconds=end)
    return ends_at <= start + timedelta(hours=1)
