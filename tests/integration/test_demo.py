"""The demo on a small part of the standard library: the whole way, with real worker processes."""

from __future__ import annotations

import asyncio
import email
import json
import os
import re
from pathlib import Path

import pytest

from tandemq.core.errors import ConfigurationError
from tandemq.demo import corpus, run
from tandemq.demo.measure import Measure, is_flaky
from tandemq.demo.run import DemoFailed

PACKAGES = [Path(module.__file__ or "").parent for module in (asyncio, email, json)]


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> list[corpus.SourceFile]:
    """Three packages in place of the standard library, some names of them flaky."""
    files = [file for package in PACKAGES for file in corpus.standard_library(package)]
    files = [corpus.SourceFile(f"stdlib/{n}/{Path(file.path).name}", file.path) for n, file in enumerate(files)]
    assert 0 < sum(is_flaky(file.name) for file in files) < 20
    monkeypatch.setattr(run, "standard_library", lambda: files)
    return files


def environ(**variables: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_")} | variables


def test_the_demo_counts_the_same_with_and_without_the_queue(
    few_files: list[corpus.SourceFile],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert run.run(environ()) == 0

    out = capsys.readouterr().out
    sizes = sum(Path(file.path).stat().st_size for file in few_files)
    flaky = sum(is_flaky(file.name) for file in [*few_files, *corpus.broken_files(tmp_path)])
    assert re.search(rf"^bytes +{sizes:,} +{sizes:,}$", out, re.MULTILINE)
    assert re.search(rf"^files +{len(few_files)} +{len(few_files)}$", out, re.MULTILINE)
    assert re.search(r"^do not parse +3 +3$", out, re.MULTILINE)
    assert re.search(rf"^retries +{flaky} \({flaky} first attempts", out, re.MULTILINE)
    assert f"{len(few_files) + 3}: {len(few_files)} succeeded, 3 dead" in out
    for broken in ("unclosed_bracket.py", "python2_print.py", "wrong_encoding.py"):
        assert f"broken/{broken}  " in out
    history = out[out.index("replaying dead letter") :]
    assert "attempt 1: failed: SyntaxError" in history
    assert "replay 1, attempt 1: failed: SyntaxError" in history
    assert "The totals are equal" in out
    assert not list(tmp_path.iterdir()), "it cleans up after itself"


@pytest.mark.servers
def test_the_demo_on_servers_leaves_its_tasks_and_refuses_to_mix_them_with_new_ones(
    mysql_url: str, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = environ(TANDEMQ_DATABASE_URL=mysql_url, TANDEMQ_REDIS_URL=redis_url, TANDEMQ_NAMESPACE="other")

    assert run.run(variables) == 0
    with pytest.raises(DemoFailed, match="hold tasks of an earlier demo"):
        run.run(variables)

    assert "tqdemo_tasks" in capsys.readouterr().out


def test_totals_that_differ_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "measure", lambda path: Measure(1, 0, 0, 0))

    with pytest.raises(DemoFailed, match=r"lines: \d+ and 0; .*only one of them could parse broken/"):
        run.run(environ())


def test_a_worker_that_cannot_start_is_a_failure_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SLOTS", -1)

    with pytest.raises(DemoFailed, match=r"exit code 2: .*--slots"):
        run.run(environ())


def test_one_url_without_the_other_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="TANDEMQ_REDIS_URL"):
        run.run(environ(TANDEMQ_DATABASE_URL="mysql://h/x"))
