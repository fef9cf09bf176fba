"""Lines of log: one record a line, the running task on it, no secret in it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tandemq import logs
from tandemq.core.masking import Mask
from tandemq.core.settings import Settings
from tandemq.handler import CurrentTask, reset_current, set_current

SECRET = "p@ss#1/%:?"
ENCODED = "p%40ss%231%2F%25%3A%3F"
SETTINGS = Settings.load(
    {},
    database_url=f"mysql+pymysql://app:{ENCODED}@db:3306/q",
    redis_url="redis://:redis-canary@cache:6379/0?password=query-canary",
)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger as in a process that has just started."""
    root = logging.getLogger()
    handlers, level, last = root.handlers[:], root.level, logging.lastResort
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    root.handlers[:] = []
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    logging.lastResort = last


def said(root: logging.Logger, **how: Any) -> io.StringIO:
    """What is written from here on; pytest's own handlers come with each phase of a test."""
    root.handlers[:] = []
    logs.configure(**{"process": "child", "log_format": "json", "level": "info", **how})
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(into := io.StringIO())
    return into


def json_lines(root: logging.Logger, *, worker: str | None = "w-1") -> io.StringIO:
    return said(root, secrets=SETTINGS.secrets(), worker=worker)


@pytest.fixture
def running() -> Iterator[CurrentTask]:
    task = CurrentTask(7, "mail", "send", 3, 5)
    token = set_current(lambda: task)
    yield task
    reset_current(token)


def test_a_line_of_json_says_when_who_and_what(root: logging.Logger) -> None:
    out = json_lines(root)
    logging.getLogger("shop").warning("two\nlines of %s", "text")

    (line,) = out.getvalue().splitlines()
    found = json.loads(line)
    assert found["message"] == "two\nlines of text"
    assert (found["level"], found["logger"], found["process"], found["worker"]) == ("warning", "shop", "child", "w-1")
    when = datetime.fromisoformat(found["ts"])
    assert when.utcoffset() is not None
    assert found["ts"].endswith("Z")
    assert "task_id" not in found


def test_every_line_that_a_handler_writes_carries_its_task(root: logging.Logger, running: CurrentTask) -> None:
    out = json_lines(root)
    logging.getLogger("some.library").info("deep inside")
    running.log.info("by hand")

    for line in map(json.loads, out.getvalue().splitlines()):
        assert (line["task_id"], line["queue"], line["type"], line["attempt"]) == (7, "mail", "send", 3)
        assert line["worker"] == "w-1"


def test_a_line_about_another_task_keeps_that_one(root: logging.Logger, running: CurrentTask) -> None:
    out = json_lines(root)
    logging.getLogger("tandemq").info("dead", extra={"task_id": 9, "task_type": "read"})

    line = json.loads(out.getvalue())
    assert (line["task_id"], line["type"]) == (9, "read")
    assert "attempt" not in line


def test_text_names_the_task_once(root: logging.Logger, running: CurrentTask) -> None:
    out = said(root, log_format="text")
    logging.getLogger("some.library").info("deep inside")
    running.log.info("by hand")

    first, second = out.getvalue().splitlines()
    assert first.endswith("some.library: [send 7 attempt 3] deep inside")
    assert second.endswith("tandemq.task: [send 7 attempt 3] by hand")


def test_an_exception_is_one_field_of_one_line(root: logging.Logger) -> None:
    out = json_lines(root)
    try:
        raise ValueError(f"cannot reach {SETTINGS.database_url}")
    except ValueError:
        logging.getLogger("shop").exception("failed")

    (line,) = out.getvalue().splitlines()
    found = json.loads(line)
    assert found["exception"].startswith("Traceback")
    assert "ValueError: cannot reach mysql+pymysql://***@db:3306/q" in found["exception"]


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_no_secret_leaves_in_a_message_an_argument_or_a_traceback(root: logging.Logger, log_format: str) -> None:
    out = said(root, log_format=log_format, secrets=SETTINGS.secrets())
    log = logging.getLogger("shop")
    log.info("%s and %r", SETTINGS.database_url, {"url": SETTINGS.redis_url})
    log.info("the bare ones: %s %s redis-canary query-canary", SECRET, ENCODED)
    log.info("another's: amqp://guest:other-canary@host/ password=third-canary")
    try:
        raise RuntimeError(SECRET) from ConnectionError(f"login with {ENCODED} to redis://u:fourth-canary@h/0")
    except RuntimeError:
        log.exception("failed")

    for secret in (SECRET, ENCODED, "canary"):
        assert secret not in out.getvalue()
        assert json.dumps(secret)[1:-1] not in out.getvalue()


def test_what_has_no_secret_is_left_as_it_is() -> None:
    mask = Mask(SETTINGS.secrets())
    for text in ("a@b.example wrote", "https://example.org/a?b=c", "100 % of 3:4", "redis://cache:6379/0", ""):
        assert mask(text) == text
    assert mask("see https://u@example.org/x for y@z") == "see https://***@example.org/x for y@z"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Basic dXNlcjpodW50ZXIy, more", "Authorization: ***, more"),
        ("{'authorization': 'Bearer a.b-c'}", "{'authorization': '***'}"),
        ("password='my secret phrase' at h", "password='***' at h"),
        (r"{\"password\": \"hunter2\", \"a\": 1}", r"{\"password\": \"***\", \"a\": 1}"),
        ('{"password": "two words"}', '{"password": "***"}'),
        ("pwd='cut off", "pwd='*** off"),
        ("?password=a&x=1", "?password=***&x=1"),
        ("password: '' is empty, the password is wrong", "password: '' is empty, the password is wrong"),
    ],
)
def test_what_is_called_a_password_is_hidden_however_it_is_quoted(text: str, masked: str) -> None:
    assert Mask()(text) == masked


def test_an_application_that_logs_its_own_way_is_left_alone(root: logging.Logger) -> None:
    root.handlers[:] = [own := logging.NullHandler()]
    logs.configure("worker", log_format="json", level="debug")
    assert root.handlers == [own]


@pytest.mark.parametrize("sets_up", [True, False])
def test_a_child_leaves_the_log_to_the_application_it_imports_as_its_worker_does(
    root: logging.Logger, sets_up: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    logs.configure("child", log_format="json", level="info", secrets=["canary-1"], is_loaded=False)
    logging.getLogger("shop").warning("while it is imported: %s", "canary-1")
    if sets_up:
        logging.basicConfig(format="own %(message)s", level="INFO")
    logs.loaded()
    logging.getLogger("shop").info("hello")
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["message"] == "while it is imported: ***"
    assert second == "own hello" if sets_up else json.loads(second)["message"] == "hello"


def test_what_a_call_gives_as_extra_is_in_the_object_and_hides_nothing_of_ours(
    root: logging.Logger, running: CurrentTask
) -> None:
    out = json_lines(root)
    extra = {
        "order": {"id": 5, "note": f"by {SECRET}", "api_password": "hidden-canary"}, "ts": "mine", "level": "mine",
        "worker": "mine", "cost": float("nan"), "who": object, "authorization": "canary", "tags": ("a", 1),
    }  # fmt: skip
    logging.getLogger("shop").info("paid", extra=extra)
    line = json.loads(out.getvalue(), parse_constant=pytest.fail)
    assert line["order"] == {"id": 5, "note": "by ***", "api_password": "***"}
    assert (line["level"], line["worker"], line["task_id"], line["message"]) == ("info", "w-1", 7, "paid")
    assert line["ts"] != "mine"
    assert line["tags"] == ["a", 1]
    assert "canary" not in out.getvalue()


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_log_call_with_wrong_arguments_is_one_line_without_them(
    root: logging.Logger, log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(root, log_format=log_format, secrets=SETTINGS.secrets())
    logging.getLogger("shop").info("%d tasks", SETTINGS.database_url)
    (line,) = out.getvalue().splitlines()
    assert "%d tasks (wrong arguments of a log call: TypeError)" in line
    assert ENCODED not in line
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_record_that_cannot_be_written_is_one_line_without_its_contents(
    root: logging.Logger, log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Odd:
        def __str__(self) -> str:
            raise LookupError(SECRET)

    out = said(root, log_format=log_format, secrets=SETTINGS.secrets())
    logging.getLogger("shop").info("odd", extra={"task_id": Odd(), "x": Odd()})
    (line,) = out.getvalue().splitlines()
    assert "cannot be written: LookupError" in line
    assert "shop" not in line or json.loads(line)["logger"] == "tandemq"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_what_nobody_catches_is_masked_in_every_format(
    root: logging.Logger, log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(root, log_format=log_format, secrets=SETTINGS.secrets())

    class Broken:
        def __del__(self) -> None:
            raise LookupError(f"while it went: {SECRET}")

    def broken() -> None:
        raise LookupError(f"in a thread: {SECRET}")

    thread = threading.Thread(target=broken, name="side")
    thread.start()
    thread.join()
    Broken()
    sys.excepthook(LookupError, LookupError(f"at the end: {SECRET}"), None)
    for what in ("in a thread: ***", "while it went: ***", "at the end: ***"):
        assert what in out.getvalue()
    assert SECRET not in out.getvalue()
    assert capsys.readouterr().err == ""
    if log_format == "json":
        assert len([json.loads(line) for line in out.getvalue().splitlines()]) == 3


def test_the_level_of_the_settings_counts(root: logging.Logger) -> None:
    root.handlers[:] = []
    logs.of_settings(Settings.load({"TANDEMQ_LOG_LEVEL": "warning"}), "mover")
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(out := io.StringIO())
    logging.getLogger("x").info("quiet")
    logging.getLogger("x").warning("loud")
    assert out.getvalue().count("\n") == 1


def test_warnings_and_what_nobody_catches_are_lines_too(root: logging.Logger) -> None:
    out = json_lines(root)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old\nway", DeprecationWarning, stacklevel=1)

    def broken() -> None:
        raise LookupError("no such thing")

    thread = threading.Thread(target=broken, name="side")
    thread.start()
    thread.join()

    first, second = map(json.loads, out.getvalue().splitlines())
    assert first["logger"] == "py.warnings"
    assert "side" in second["message"]
    assert "LookupError: no such thing" in second["exception"]


def test_a_process_that_dies_of_an_exception_says_so_in_json_without_the_secret() -> None:
    program = (
        "from tandemq import logs\n"
        "logs.configure('worker', log_format='json', level='info', secrets=['canary-1'])\n"
        "raise SystemError('canary-1 was refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    found = json.loads(done.stderr)
    assert "SystemError: *** was refused" in found["exception"]
    assert found["level"] == "critical"


def test_a_handler_cannot_break_the_log_by_what_it_logs(root: logging.Logger) -> None:
    out = json_lines(root)
    logging.getLogger("x").info("%s \ud800 \x00 \u2028", "lone")
    assert len(out.getvalue().splitlines()) == 1
    assert json.loads(out.getvalue())["message"].startswith("lone \ud800")


def test_the_settings_name_a_format_or_level_that_is_none() -> None:
    from tandemq.core.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"TANDEMQ_LOG_FORMAT='xml' must be .*; TANDEMQ_LOG_LEVEL='loud' must"):
        Settings.load({"TANDEMQ_LOG_FORMAT": "xml", "TANDEMQ_LOG_LEVEL": "loud"})
