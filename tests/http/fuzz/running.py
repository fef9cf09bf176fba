"""Schemathesis against the API as it is served: every route, every check, each role with a token of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tandemq import Filter, NewTask, TandemQ, metrics
from tandemq.core.lifecycle import Bury, DeadReason, Failure, RetryIn, Succeed, Verdict
from tandemq.http import security
from tandemq.http.routes import ROUTES
from tandemq.store.answers import Settlement
from tests.api import ServedApi

ROLES = ("read", "produce", "work", "operate")
ROOT = Path(__file__).parents[3]
LIMIT_S = 3000.0
CONFIG = """
request-timeout = 60.0
generation.max-examples = {examples}
# As it is by default, and 414: what is longer than it may be can be longer than a request may be.
checks.negative_data_rejection.expected-statuses = [
    400, 401, 403, 404, 405, 406, 409, 414, 415, 422, 428, 429, "5xx",
]
# Only the links of the document: those that are guessed from names crowd them out.
phases.stateful.inference.algorithms = []
"""
#: Tasks that wait to be claimed.
READY = 1000


class Outcome(NamedTuple):
    """What a run of schemathesis did; ``text`` is what it printed, ``answers`` how many by (route, status)."""

    code: int
    cases: int
    text: str
    answers: Counter[tuple[str, int]]

    def faults(self, role: str) -> list[str]:
        """What is wrong: found by it, or by what the API counted: runs that meet nothing but refusals find nothing."""
        found = [f"exit code {self.code}"] if self.code or not self.cases else []
        total = self.answers.total()
        refused = sum(n for (_, status), n in self.answers.items() if status == 429)
        found += [f"{refused} of {total} answers are 429"] if refused > total / 20 else []
        found += [f"{route}: {n} times {status}" for (route, status), n in self.answers.items() if status >= 500]
        for route in ROUTES:
            seen = {status for (name, status), n in self.answers.items() if name == route.name and n}
            if route.roles is None or role in route.roles:
                found += [] if any(200 <= status < 300 for status in seen) else [f"{route.name} was never answered 2xx"]
                found += [f"{route.name} was refused to {role}"] if 403 in seen else []
            else:
                found += [f"{route.name}: {seen} to {role}"] if not seen or seen - {401, 403, 429} else []
        return found


def with_tasks(app: TandemQ) -> None:
    """Tasks in every state, with histories, keys and odd texts; most types die so that there is much to replay."""
    failure = Failure("Böse\N{SNOWMAN}", "no 'order' in 100%", "Traceback ...")
    verdicts: list[Verdict | None] = [
        None,
        Succeed('{"sum":5}'),
        RetryIn(3600.0, failure),
        Bury(DeadReason.NON_RETRYABLE, failure),
        Bury(DeadReason.TIMEOUT, failure, "timeout"),
    ]
    for number in range(20):
        options: dict[str, Any] = {"queue": "q" if number % 2 else None, "idempotency_key": f"key-{number}"}
        new = NewTask(f"type.{number % 3}", {"n": number, "text": "\N{SNOWMAN}\x00'"}, max_retries=3, **options)
        (handle,) = app.enqueue_many([new])
        if number % 6 == 5:
            app.cancel(handle.id, reason="seed")
            continue
        how: dict[str, Any] = {"lease_s": 3600.0, "free": 1, "known": None, "unknown_task_s": 60.0}
        token = 1000 + number
        (lease,) = app.store.claim([handle.id], worker_id="seed", token=token, **how).leases
        verdict = verdicts[number % len(verdicts)]
        if verdict is not None:
            app.store.finish([Settlement(lease, verdict)], closing=[token], worker_id="seed")
    app.enqueue_many([NewTask("later", {}, delay=3600.0), NewTask("type.0", {}, priority="critical")])
    app.enqueue_many(NewTask("type.1", {"n": number}) for number in range(READY))
    app.dead.replay(where=Filter(error_type="none has it"), reason="seed", detach=True)
    app.pauses.pause("paused", reason="seed")  # nobody's: what is held up by it would not be claimed
    app.pauses.pause(task_type="paused", for_=3600)


def tokens(app: TandemQ) -> dict[str, str]:
    """A token for each role."""
    return {role: app.tokens.create(role, [role]).text for role in ROLES}


def known(api: ServedApi, of_role: Mapping[str, str]) -> dict[str, Any]:
    """Tasks that a worker holds, with their tokens, and dead ones: for requests that shall not be refused."""
    held, dead = [], []
    with api.client(of_role["operate"]) as client:
        for purpose in ("held", "dead"):
            client.post("/jobs/batch", json=[{"type": purpose, "queue": purpose}] * 100).raise_for_status()
            claim = {"worker_id": "known", "queues": [purpose], "max": 100, "lease": 3600}
            jobs = client.post("/jobs/claim", json=claim).raise_for_status().json()["jobs"]
            held += [(job["id_str"], job["lease_token"]) for job in jobs if purpose == "held"]
            dead += [job for job in jobs if purpose == "dead"]
        for job in dead:
            body = {"lease_token": job["lease_token"], "retryable": False}
            client.post(f"/jobs/{job['id_str']}/fail", json=body).raise_for_status()
    return {"held": held, "dead": [job["id_str"] for job in dead]}


def counted() -> Counter[tuple[str, int]]:
    """Answers of this process so far, by route and status."""
    line = re.compile(r'tandemq_http_requests_total\{route="(\w+)",status="(\d+)"\} ([\d.e+]+)')
    page = metrics.page()
    assert page is not None
    return Counter({(route, int(status)): int(float(n)) for route, status, n in line.findall(page.text.decode())})


def run(api: ServedApi, of_role: Mapping[str, str], role: str, directory: Path, *, examples: int, seed: int) -> Outcome:
    """One run with all checks and all phases. ``examples``: cases of each route in the longest phase."""
    token = of_role[role]
    directory.mkdir(parents=True, exist_ok=True)
    # A configuration of its own: one in a directory above might leave something out.
    (directory / "schemathesis.toml").write_text(CONFIG.format(examples=examples))
    # From a file: where it is fetched from the API its own route is left out.
    with api.client(token) as client:
        (directory / "openapi.json").write_bytes(client.get("/openapi.json").raise_for_status().content)
    command = [
        sys.executable, "-m", "schemathesis.cli", "--no-color", "run", "openapi.json", "--url", api.url,
        "-H", f"Authorization: Bearer {token}", "--checks", "all", "--phases", "examples,coverage,fuzzing,stateful",
        "--mode", "all", "--seed", str(seed), "--continue-on-failure",
        "--generation-database", "none", "--output-sanitize", "false",
    ]  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    (directory / "known.json").write_text(json.dumps(known(api, of_role)))
    environ |= {"TANDEMQ_FUZZ_KNOWN": str(directory / "known.json")}
    environ |= {"SCHEMATHESIS_HOOKS": "tests.http.fuzz.hooks", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    before = counted()
    # It tries many wrong tokens, and each is to be told that it is wrong: 429 comes after twenty.
    with mock.patch.object(security, "FAILURES", 10**6):
        done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, timeout=LIMIT_S, check=False)
    text = (done.stdout + done.stderr).decode(errors="replace")
    cases = re.search(r"([\d,]+) generated", text)
    return Outcome(done.returncode, int(cases[1].replace(",", "")) if cases else 0, text, counted() - before)
