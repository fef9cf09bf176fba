"""B35: idempotency keys that people tell apart and collations do not.

Required: keys with different bytes make different tasks, and both run; the same bytes find the same task, on an own
connection and on a caller's. A key of more than 255 bytes is refused and never cut, an empty one is refused; nothing is
stored then.
"""

from __future__ import annotations

import unicodedata

import pytest
import sqlalchemy as sa

from tandemq import InvalidTask
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.truth import assert_settled, row_count, sql
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

APP = "tests.apps.scenarios_b:app"
PAIRS = {
    "case": ("Order-1", "order-1"),
    "trailing space": ("k1", "k1 "),
    "trailing spaces": ("k2 ", "k2  "),
    "leading space": ("k3", " k3"),
    "tab and space": ("k4\t", "k4 "),
    "only spaces": (" ", "  "),
    "accent": ("é", "e"),
    "sharp s": ("straße", "strasse"),
    "two emoji": ("🦀", "🐙"),
    "emoji and its variant": ("❤", "❤\ufe0f"),
    "normal forms": (unicodedata.normalize("NFC", "é!"), unicodedata.normalize("NFD", "é!")),
    "width": ("ＡＢＣ", "ABC"),
    "kana": ("はは", "ハハ"),
    "dotless i": ("ı", "i"),
    "zero width": ("zero", "ze\u200bro"),
    "nul": ("nul", "nul\x00"),
    "backslash and percent": ("a\\_%", "a_%"),
    "quotes": ("it's", "it''s"),
    "number and text": ("1", "01"),
    "exponent": ("1e1", "10"),
    "last of 255": ("x" * 254 + "a", "x" * 254 + "b"),
    "last of 255 bytes": ("é" * 127 + "a", "é" * 127 + "b"),
    "length": ("y" * 254, "y" * 255),
}
TOO_LONG = ("x" * 256, "x" * 299 + "a", "x" * 299 + "b", "é" * 128, "🦀" * 64)


def test_different_bytes_are_different_tasks_and_the_same_bytes_find_theirs(work: Bench, probe: Probe) -> None:
    keys = [key for pair in PAIRS.values() for key in pair]
    assert len({key.encode() for key in keys}) == len(keys)

    first = {key: work.app.enqueue("b.noop", {"n": 1}, idempotency_key=key) for key in keys}

    assert all(handle.created for handle in first.values())
    assert len({handle.id for handle in first.values()}) == len(keys)
    for charset in ("utf8mb4", "latin1"):
        engine = sa.create_engine(work.settings.database_url, connect_args={"charset": charset})
        with engine.begin() as connection:
            for key, handle in first.items():
                again = work.app.enqueue("b.noop", {"n": 1}, idempotency_key=key, connection=connection)
                assert (again.id, again.created) == (handle.id, False), key
        engine.dispose()
    for key, handle in first.items():
        again = work.app.enqueue("b.noop", {"n": 1}, idempotency_key=key)
        assert (again.id, again.created) == (handle.id, False), key
        task = work.app.get(handle.id)
        assert task is not None
        assert task.idempotency_key == key
    stored = sql(work, "SELECT id, idempotency_key FROM {t}tasks")
    assert {task_id: bytes(key) for task_id, key in stored} == {h.id: key.encode() for key, h in first.items()}
    ids = [handle.id for handle in first.values()]
    assert work.worker("--burst", app=APP).wait() == 0
    probe.assert_once(ids)
    assert_settled(work, probe, ids)


def test_the_command_line_takes_keys_byte_for_byte(work: Bench) -> None:
    pairs = [PAIRS[name] for name in ("case", "trailing space", "normal forms")]
    bodies = [(key, f'{{"type": "b.noop", "payload": {{}}, "idempotency_key": "{key}"}}\n') for p in pairs for key in p]
    lines = "".join(line for _, line in bodies)
    answer = tandemq(work.settings, "enqueue", "--file", "-", "--json", stdin=lines + lines)
    assert (answer.json["stored"], answer.json["existing"]) == (len(bodies), len(bodies))
    by_flag = tandemq(work.settings, "enqueue", "b.noop", "{}", "--key", "k1 ", "--json").json
    assert by_flag["created"] is False
    shown = work.app.get(by_flag["id"])
    assert shown is not None
    assert shown.idempotency_key == "k1 "


def test_too_long_and_empty_keys_are_refused_and_nothing_is_stored(work: Bench) -> None:
    for key in TOO_LONG:
        with pytest.raises(InvalidTask, match=rf"idempotency_key is {len(key.encode())} bytes long; the limit is 255"):
            work.app.enqueue("b.noop", {}, idempotency_key=key)
    with pytest.raises(InvalidTask, match="idempotency_key must not be empty"):
        work.app.enqueue("b.noop", {}, idempotency_key="")
    with pytest.raises(InvalidTask, match="lone surrogate"):
        work.app.enqueue("b.noop", {}, idempotency_key="\ud800")
    for key in (b"bytes", 5, True):
        with pytest.raises(TypeError, match="idempotency_key must be text"):
            work.app.enqueue("b.noop", {}, idempotency_key=key)  # type: ignore[arg-type]
    assert "255" in tandemq(work.settings, "enqueue", "b.noop", "{}", "--key", TOO_LONG[1], code=2).err
    assert "empty" in tandemq(work.settings, "enqueue", "b.noop", "{}", "--key", "", code=2).err
    assert row_count(work) == 0
