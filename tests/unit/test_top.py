"""``tandemq top`` without a terminal: what keys do, what is drawn, what rates are made of."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.core.errors import BrokerUnavailable
from tandemq.core.pausing import Pause, PauseKind
from tandemq.core.printable import fitted, printable, width
from tandemq.store.answers import DeadKind, WorkerRecord
from tandemq.testing import FakeClock
from tandemq.top import drawing, model, picture
from tandemq.top.drawing import Frame, Style, screen, span
from tandemq.top.model import Quit, Replay, SetPause, State, View, press
from tandemq.top.picture import DeadRow, Painter, Picture, QueueRow, Rates

NOW = datetime(2026, 11, 30, 12, 0, 3, tzinfo=UTC)


def pause(name: str, kind: PauseKind = PauseKind.QUEUE) -> Pause:
    return Pause(kind, name, NOW, NOW + timedelta(minutes=5), "ada", "")


def queue(name: str, paused: bool = False) -> QueueRow:
    return QueueRow(name, 7, 1, 0, 2, False, pause(name) if paused else None, 75.0, 0.2, Rates(1.0, 250.4, None))


def dead(text: str, *ids: int) -> DeadRow:
    return DeadRow("mail.send", "OSError", text, NOW, ids)


def worker(name: str, alive: bool = True) -> WorkerRecord:
    return WorkerRecord(f"{name}-1", name, "host", 42, "a,b", 8, 2, "running", NOW, NOW, alive, "fair", 3, 4.0)


def seen(**changes: Any) -> Picture:
    given = {
        "queues": (queue("a"), queue("b", paused=True), queue("c")),
        "workers": (worker("alpha"), worker("beta", alive=False)),
        "dead": (dead("no route", 9, 8), dead("time out", 5)),
        "dead_count": 3,
    }
    return Picture(at=NOW, **cast("Any", given | changes))


def typed(state: State, keys: str | list[str], shown: Picture | None = None) -> tuple[State, list[model.Order]]:
    orders = []
    for key in keys:
        state, order = press(state, key, shown or seen())
        if order is not None:
            orders.append(order)
    return state, orders


def test_the_selected_queue_is_paused_and_resumed() -> None:
    state, orders = typed(State(), "pjrjp")
    assert orders == [SetPause("a", True), SetPause("b", False), SetPause("c", True)]
    state, orders = typed(state, "r")
    assert (orders, state.message) == ([], "queue c is not paused")
    assert typed(State(), "jp")[0].message == "queue b is paused"


def test_a_selection_is_of_a_name_wherever_its_row_goes() -> None:
    state, _ = typed(State(), "jj")
    fewer = seen(queues=(queue("c"), queue("d")))
    assert press(state, "p", fewer)[1] == SetPause("c", True)
    assert press(state, "p", seen(queues=(queue("d"),)))[1] == SetPause("d", True)
    assert press(state, "p", seen(queues=()))[1] is None
    assert press(state, "p", None)[1] is None


def test_a_kind_is_replayed_after_a_question_only() -> None:
    state, orders = typed(State(), "dR")
    assert (orders, state.asking) == ([], Replay((9, 8), "mail.send OSError"))
    # What is asked about is what was counted then, whatever has come since.
    assert press(state, "y", seen(dead=(dead("other", 77),)))[1] == Replay((9, 8), "mail.send OSError")
    for key in "nq R":
        after, order = press(state, key, seen())
        assert (after.asking, order, after.message) == (None, None, "nothing was replayed")
    assert "select a kind" in typed(State(), "R")[0].message
    assert "select a queue" in typed(State(), "dp")[0].message
    assert typed(State(), ["d", model.DOWN, "R"])[0].asking == Replay((5,), "mail.send OSError")


def test_views_and_moves() -> None:
    assert [typed(State(), keys)[0].view for keys in ("w", "d", "?", "ww", "wd", ["w", model.ESCAPE])] == [
        View.WORKERS, View.DEAD, View.HELP, View.QUEUES, View.DEAD, View.QUEUES,
    ]  # fmt: skip
    assert model.place(typed(State(), [model.LAST])[0], seen()) == 2
    assert model.place(typed(State(), [model.LAST, model.UP, model.DOWN, model.DOWN])[0], seen()) == 2
    assert model.place(typed(State(), [model.PAGE_DOWN, model.FIRST])[0], seen()) == 0
    assert typed(State(), "xq")[1] == [Quit()]


def text_of(lines: list[drawing.Line]) -> str:
    return "\n".join(line.text for line in lines)


def test_what_is_drawn() -> None:
    shown = seen(paused_types=(pause("report.build", PauseKind.TYPE),), redis="Connection refused")
    lines = screen(State(), shown, Frame("shop", "MySQL is away", 12.4), 110, 14)
    assert "tandemq shop  12:00:03Z" in lines[0].text
    assert (lines[1].text.strip(), lines[1].style) == ("NO ANSWER for 12s: MySQL is away", Style.ALARM)
    assert "REDIS IS AWAY: Connection refused" in lines[2].text
    assert "workers 1, busy 3/16  dead 3" in lines[3].text
    assert "task type report.build is paused until 12:05:03Z" in lines[4].text
    assert lines[6].style is Style.SELECTED
    assert lines[6].text.split() == ["a", "7", "1", "75s", "1.0", "250", "-", "0.2s", "0", "2"]
    assert (lines[7].text.startswith("b (paused until 12:05:03Z)"), lines[7].style) == (True, Style.ALARM)
    assert "p pause" in lines[-1].text
    assert len(lines) == 14

    assert "beta    gone" in text_of(screen(typed(State(), "w")[0], shown, Frame("shop"), 110, 20))
    asked = screen(typed(State(), "dR")[0], shown, Frame("shop"), 110, 20)
    assert asked[-2].text.strip() == "replay 2 dead letters of mail.send OSError? y/n"
    assert [line.text.strip() for line in screen(typed(State(), "dR")[0], shown, Frame("shop"), 60, 2)][1:] == [
        "replay 2 dead letters of mail.send OSError? y/n"
    ]
    assert "working" in text_of(screen(State(), shown, Frame("shop", is_working=True), 110, 20))
    assert "waiting for the database" in text_of(screen(State(), None, Frame("shop"), 110, 20))
    assert "no open tasks" in text_of(screen(State(), seen(queues=()), Frame("shop"), 110, 20))
    inexact = replace(queue("a"), is_inexact=True)
    assert "~7" in text_of(screen(State(), seen(queues=(inexact,)), Frame("shop"), 110, 20))


def test_columns_stand_under_each_other_whatever_is_in_them() -> None:
    ugly = replace(dead("text", 1), task_type="\x1b[2J数")
    rows = drawing.rows_of(View.DEAD, seen(dead=(ugly, dead("text", 2))))
    rows = [line._replace(text=printable(line.text)) for line in rows]  # as it is shown in the end
    assert {width(line.text.partition("OSError")[0]) for line in rows[1:]} == {
        width(rows[0].text.partition("ERROR")[0])
    }


ODD = st.text(max_size=12) | st.sampled_from(["\x1b[2J", "数字文字列", "e\u0301", "\u202eabc", "a\nb", "👩‍👩‍👧"])


@given(ODD, ODD, ODD, st.integers(1, 90), st.integers(1, 20), st.sampled_from(["", "w", "d", "?", "dR", "jj"]))
def test_no_line_is_longer_than_the_screen_and_nothing_raw_is_in_it(
    name: str, text: str, trouble: str, columns: int, lines: int, keys: str
) -> None:
    shown = seen(queues=(queue("a"), queue("b"), queue("c")), dead=(dead(text, 1),), workers=(worker(name),))
    state = typed(State(), keys, shown)[0]
    drawn = screen(state, shown, Frame(name, trouble), columns, lines)
    assert 1 <= len(drawn) <= lines
    assert {width(line.text) for line in drawn} <= {columns}
    assert all(line.text.isprintable() for line in drawn)
    if keys in {"", "jj"}:  # of a single line it is this one
        assert [line for line in drawn if line.style is Style.SELECTED]


@given(ODD, st.integers(0, 15))
def test_a_text_is_made_to_fit(text: str, columns: int) -> None:
    assert width(fitted(text, columns)) == columns


def test_spans() -> None:
    spans = [0.04, 9.94, 14, 99.9, 100, 5999, 6000, 47 * 3600, 80 * 3600 + 60]
    assert [span(s) for s in spans] == ["0.0s", "9.9s", "14s", "99s", "1m40s", "99m59s", "1h40m", "47h00m", "3d08h"]


class Shop:
    """An application as a Painter asks it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.settings = SimpleNamespace(lease_s=30.0)
        self.store = self
        self.open: dict[str, Any] = {}
        self.counted: list[tuple[str, str, str, int]] = []
        self.held: list[Pause] = []
        self.dead_ids: list[int] = []
        self.looks: list[str] = []
        self.away = False

    def levels_now(self, *, alive_s: float) -> Any:
        assert alive_s == 30.0
        return SimpleNamespace(
            now=NOW, queues=self.open, oldest_s={"a": 3.0}, dead=len(self.dead_ids), dead_capped=False
        )

    def outcomes(self, limit: int) -> Any:
        return self.counted

    def pauses(self) -> Any:
        return self.held

    def waits(self, limit: int) -> Any:
        return [("a", 1.0), ("a", 3.0), ("a", 20.0)]

    def workers(self) -> Any:
        return [worker("alpha")]

    def find_ids(self, where: Any, *, limit: int) -> Any:
        self.looks.append("dead")
        return self.dead_ids[:limit], None

    def kinds(self, ids: list[int]) -> Any:
        texts = {1: "no 1", 2: "no 2", 3: "other"}
        return [DeadKind(i, "a", "t", "E", texts[i], "timeout", "w", NOW + timedelta(seconds=i)) for i in ids]

    @property
    def broker(self) -> Any:
        self.looks.append("redis")
        if self.away:
            raise BrokerUnavailable("refused")
        return SimpleNamespace(queues=lambda: {"a"}, levels=lambda _: {0, 10}, depth=lambda _: 4, delayed=lambda _: 1)


def states(ready: int, **more: Any) -> dict[str, Any]:
    return {"ready": ready, "scheduled": 0, "retrying": 0, "running": 1} | more


def test_rates_are_differences_of_what_only_grows() -> None:
    shop = Shop()
    painter = Painter(cast(Any, shop))
    shop.open, shop.counted = {"a": states(100)}, [("a", "t", "succeeded", 1000), ("b", "t", "dead", 5)]
    first = painter.paint()
    assert first.rates == Rates()
    shop.clock.advance(2)
    # Of "a" 40 have succeeded, 10 were to be retried, and 60 more are open: 100 have come.
    shop.open = {"a": states(160)}
    shop.counted = [("a", "t", "succeeded", 1030), ("a", "u", "succeeded", 10), ("a", "t", "retried", 10)]
    shop.counted += [("b", "t", "dead", 9), ("b", "t", "purged", 1000)]
    second = painter.paint()
    a, b = second.queues
    assert (a.rates, a.wait_s, a.oldest_s) == (Rates(50.0, 20.0, 5.0), 3.0, 3.0)
    assert (b.name, b.rates) == ("b", Rates(2.0, 0.0, 2.0))
    assert second.rates == Rates(52.0, 20.0, 7.0)
    shop.open = {"a": states(100_000, capped=True)}
    third = painter.paint()
    assert (third.queues[0].rates.came, third.rates.came, third.queues[0].is_inexact) == (None, None, True)
    for _ in range(3):
        shop.clock.advance(picture.RATE_S)
        calm = painter.paint()
    assert (calm.rates.done, [row.name for row in calm.queues]) == (0.0, ["a"])


def test_a_paused_queue_is_shown_though_nothing_is_in_it() -> None:
    shop = Shop()
    shop.held = [pause("mail"), pause("report", PauseKind.TYPE)]
    shown = Painter(cast(Any, shop)).paint()
    assert [(row.name, row.pause) for row in shown.queues] == [("mail", shop.held[0])]
    assert shown.paused_types == (shop.held[1],)
    assert (shown.in_redis, shown.redis) == (10, "")


def test_dead_letters_by_kind_are_read_now_and_then_unless_somebody_looks() -> None:
    shop = Shop()
    painter = Painter(cast(Any, shop))
    assert painter.paint(dead=True).dead == ()
    assert "dead" not in shop.looks
    shop.dead_ids = [3, 2, 1]
    rows = painter.paint().dead
    assert [(row.text, row.ids) for row in rows] == [("other", (3,)), ("no N", (2, 1))]
    for seconds, wanted, times in ((1, False, 1), (1, True, 2), (picture.DEAD_EVERY_S + 1, False, 3)):
        shop.clock.advance(seconds)
        painter.paint(dead=wanted)
        assert shop.looks.count("dead") == times
    painter.forget_dead()
    painter.paint()
    assert shop.looks.count("dead") == 4


def test_a_redis_that_is_away_is_left_alone_for_a_while() -> None:
    shop = Shop()
    shop.away = True
    painter = Painter(cast(Any, shop))
    for _ in range(3):
        assert painter.paint().redis == "refused"
    assert shop.looks.count("redis") == 1
    shop.away = False
    shop.clock.advance(picture.REDIS_AGAIN_S)
    assert painter.paint().in_redis == 10


@pytest.mark.parametrize("value", [(None, "-"), (0.0, "0"), (0.04, "0.0"), (9.96, "10.0"), (12.4, "12")])
def test_numbers(value: tuple[float | None, str]) -> None:
    assert drawing.number(value[0]) == value[1]
