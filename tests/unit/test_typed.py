"""Handlers with annotations: what fits, what is refused and how that is said, what comes back as what it was."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pytest

from tandemq import Filter, InvalidTask, InvalidType, NewTask, TandemQ, TaskHandler, ValidationFailed
from tandemq.core import codec
from tandemq.newrow import Checks
from tandemq.registry import RegisteredTask, TaskOptions
from tandemq.testing import run_until_idle

if TYPE_CHECKING:
    from nowhere import Nothing


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Side(StrEnum):
    LEFT = "left"


@dataclass
class Item:
    price: float
    name: str = ""
    tags: list[str] = field(default_factory=list)


ITEM = {"price": 1.0, "name": "", "tags": []}


class Order(TypedDict):
    order_id: int
    items: list[Item]
    note: NotRequired[str]


class Point(NamedTuple):
    x: int
    y: int


class Mail(msgspec.Struct):
    to: str
    at: datetime


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


class Money:
    """What only its author knows."""


class Model:
    """What pydantic's models look like from outside."""

    def __repr__(self) -> str:  # the name of a test case: an address would differ between processes
        return "Model"

    def __init__(self, n: int) -> None:
        self.n = n

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value, dict) or type(value.get("n")) is not int:
            raise ValueError("n must be a number")
        return cls(value["n"])

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"n": self.n}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.n == self.n

    __hash__ = None  # type: ignore[assignment]


def of(annotation: Any, *, default: Any = ..., **options: Any) -> RegisteredTask:
    """A task with one parameter, ``x``."""

    def fn(x: Any) -> Any:
        return x

    fn.__annotations__["x"] = annotation
    if default is not ...:
        fn.__defaults__ = (default,)
    return RegisteredTask.of(fn, TaskOptions(name="t", **options))


def stored(task: RegisteredTask, value: Any, encoder: codec.Encoder | None = None) -> Any:
    """What an enqueue writes of it, and its worker reads."""
    plain = codec.plain_object(task.lower({"x": value}, encoder), "payload", encoder)
    task.check(plain)
    return codec.decode(codec.write(plain))


def got(task: RegisteredTask, payload: dict[str, Any]) -> Any:
    """What the handler is given."""
    return task.call(task.validate(payload))


# What fits


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (int, 10**40),
        (float, 5),
        (float, 0.1),
        (str, "é"),
        (bool, True),
        (int | None, None),
        (int | str, "5"),
        (list, [1, "a"]),
        (list[int], [1, 2]),
        (dict, {"a": 1}),
        (dict[str, Any], {"a": [None]}),
        (Literal["a", "b"], "b"),
        (Annotated[str, msgspec.Meta(min_length=2)], "ab"),
    ],
)
def test_what_json_has_goes_through_unchanged(annotation: Any, value: Any) -> None:
    task = of(annotation)
    assert stored(task, value) == {"x": value}
    assert got(task, {"x": value}) == value


@pytest.mark.parametrize(
    ("annotation", "value", "json"),
    [
        (datetime, datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC), "2024-02-29T12:30:01.000005Z"),
        (datetime, datetime(2024, 2, 29, 12), "2024-02-29T12:00:00"),
        (datetime, datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2024-01-01T00:00:00+02:00"),
        (date, date(2024, 2, 29), "2024-02-29"),
        (time, time(1, 2, 3), "01:02:03"),
        (timedelta, timedelta(days=1, seconds=1.5), "P1DT1.5S"),
        (UUID, UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal, Decimal("1.10"), "1.10"),
        (Colour, Colour.RED, "red"),
        (Level, Level.LOW, 1),
        (Side, Side.LEFT, "left"),
        (bytes, b"\x00\xff", "AP8="),
        (Item, Item(1.5, "a", ["b"]), {"price": 1.5, "name": "a", "tags": ["b"]}),
        (list[Item], [Item(1.0)], [ITEM]),
        (Order, {"order_id": 1, "items": [Item(1.0)]}, {"order_id": 1, "items": [ITEM]}),
        (Mail, Mail("a", datetime(2024, 1, 1, tzinfo=UTC)), {"to": "a", "at": "2024-01-01T00:00:00Z"}),
        (Point, Point(1, 2), [1, 2]),
        (tuple[int, date], (1, date(2024, 1, 1)), [1, "2024-01-01"]),
        (set[int], {3}, [3]),
        (frozenset[str], frozenset({"a"}), ["a"]),
        (dict[int, str], {1: "a"}, {"1": "a"}),
        (dict[UUID, date], {UUID(int=1): date(2024, 1, 1)}, {str(UUID(int=1)): "2024-01-01"}),
        (date | None, date(2024, 1, 1), "2024-01-01"),
        (Node, Node("a", [Node("b")]), {"name": "a", "children": [{"name": "b", "children": []}]}),
        (Model, Model(3), {"n": 3}),
        (list[Model], [Model(3)], [{"n": 3}]),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_annotation_names_is_stored_as_json_and_given_to_the_handler_as_itself(
    annotation: Any, value: Any, json: Any
) -> None:
    task = of(annotation)
    assert stored(task, value) == {"x": json}
    again = got(task, {"x": json})
    assert again == value
    assert type(again) is type(value)
    assert got(task, stored(task, value)) == value


def test_a_whole_number_is_a_float_where_one_is_asked_for() -> None:
    assert type(got(of(float), {"x": 5})) is float
    assert type(got(of(list[float]), {"x": [5]})[0]) is float


def test_decimals_may_come_as_numbers_too_since_other_programs_write_them_so() -> None:
    assert got(of(Decimal), {"x": 0.1}) == Decimal("0.1")
    assert got(of(Decimal), {"x": 3}) == Decimal(3)


def test_none_is_fine_where_it_is_the_default_whatever_the_annotation_says() -> None:
    assert got(of(int, default=None), {"x": None}) is None
    assert got(of(int, default=None), {}) is None
    with pytest.raises(ValidationFailed):
        got(of(int, default=1), {"x": None})


# What does not


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "5", "payload.x: expected int, got str"),
        (int, True, "payload.x: expected int, got bool"),
        (int, 5.0, "payload.x: expected int, got float"),
        (float, True, "payload.x: expected float, got bool"),
        (str, 5, "payload.x: expected str, got int"),
        (bool, 1, "payload.x: expected bool, got int"),
        (int, None, "payload.x: expected int, got null"),
        (int | None, "a", "payload.x: expected int | null, got str"),
        (list[int], [1, "2"], "payload.x[1]: expected int, got str"),
        (dict[str, int], {"a": "b"}, "payload.x[...]: expected int, got str"),
        (dict[int, str], {"a": "b"}, "key in payload.x: expected int, got str"),
        (Order, {"order_id": 1, "items": [ITEM, {"price": "x"}]}, "payload.x.items[1].price: expected float, got str"),
        (Order, {"items": []}, "payload.x: object missing required field order_id"),
        (datetime, "yesterday", "payload.x: invalid RFC3339 encoded datetime"),
        (Colour, "blue", "payload.x: invalid enum value 'blue'"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "payload.x: expected int >= 1"),
        (Model, {"n": "x"}, "payload.x: n must be a number"),
    ],
    ids=str,
)  # fmt: skip
def test_a_misfit_is_named_by_its_path_and_both_types_at_both_ends(annotation: Any, value: Any, said: str) -> None:
    task = of(annotation)
    with pytest.raises(ValidationFailed) as in_the_worker:
        task.validate({"x": value})
    assert str(in_the_worker.value) == said
    with pytest.raises(InvalidTask) as at_the_enqueue:
        task.check({"x": value})
    assert str(at_the_enqueue.value) == f"{said} (t)"
    assert at_the_enqueue.value.field == said.partition(": ")[0]
    assert isinstance(at_the_enqueue.value, InvalidType) == (", got " in said)


def test_names_are_checked_at_the_enqueue_as_well() -> None:
    task = of(int)
    for payload in ({}, {"x": 1, "y": 2}):
        with pytest.raises(InvalidTask, match=r"does not fit t\(x.*argument") as refused:
            task.check(payload)
        assert refused.value.field == "payload"


def test_a_payload_deeper_than_the_checker_can_follow_is_refused_not_retried() -> None:
    deep: dict[str, Any] = {"name": "a", "children": []}
    for _ in range(100_000):
        deep = {"name": "a", "children": [deep]}
    with pytest.raises(ValidationFailed, match="nested too deeply"):
        of(Node).validate({"x": deep})
    while deep["children"]:  # taken apart here: the interpreter would do it by recursion
        (deep,) = deep["children"]


# What is not checked


@pytest.mark.parametrize(
    "annotation",
    [
        Any, object, "Any", Money, list[Money], dict[str, Path], Iterable[int], Callable[[], None], "Nothing",
        "no such", "list[Nothing]", datetime | str, Item | Order, complex,
    ],
    ids=str,
)  # fmt: skip
def test_what_the_library_does_not_know_is_not_checked_and_never_an_error(annotation: Any) -> None:
    task = of(annotation)
    for value in (1, "1", None, [1], {"a": [1]}):
        assert got(task, {"x": value}) is value
        task.check({"x": value})


def test_a_name_that_cannot_be_resolved_is_told_once_and_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def fn(a: Nothing, b: int, c: str = "") -> Any:
        return a, b, c

    with caplog.at_level(logging.DEBUG, "tandemq.typed"):
        task = RegisteredTask.of(fn, TaskOptions(name="t"))
        assert caplog.messages == []
        for _ in range(3):
            assert got(task, {"a": {"any": 1}, "b": 1}) == ({"any": 1}, 1, "")
    assert [m for m in caplog.messages if "a is not checked" in m] == [
        "task t: a is not checked: NameError: name 'Nothing' is not defined"
    ]
    with pytest.raises(ValidationFailed, match=r"payload\.b: expected int, got str"):
        task.validate({"a": 1, "b": "1"})


def later(x: Later) -> Any:
    return x


task_of_later = RegisteredTask.of(later, TaskOptions(name="later"))


class Later(TypedDict):
    n: int


def test_a_class_that_the_module_defines_further_down_is_found() -> None:
    assert got(task_of_later, {"x": {"n": 1}}) == {"n": 1}
    with pytest.raises(ValidationFailed, match=r"payload\.x\.n"):
        task_of_later.validate({"x": {"n": "1"}})


def test_without_annotations_there_is_nothing_to_ask() -> None:
    task = RegisteredTask.of(lambda x, y=1: x, TaskOptions(name="t"))
    payload = {"x": object()}
    assert task.types is None
    assert task.validate(payload) is payload


def test_it_can_be_switched_off_for_a_task_and_for_an_application(tandemq_app: TandemQ) -> None:
    def fn(x: int) -> None: ...

    assert got(of(int, typed=False), {"x": "5"}) == "5"
    of(int, typed=False).check({"y": 1})
    with TandemQ(typed=False) as app:
        assert app.task(name="a")(fn).registered.types is None
        assert app.task(name="b", typed=True)(fn).registered.types is not None
    assert tandemq_app.task(name="a")(fn).registered.types is not None
    assert tandemq_app.task(name="b", typed=False)(fn).registered.types is None


# Parameters


def test_extra_arguments_are_checked_by_their_annotation_and_kept() -> None:
    def fn(n: int, free: Money, **extra: date) -> Any:
        return n, free, extra

    task = RegisteredTask.of(fn, TaskOptions(name="t"))
    day = date(2024, 1, 1)
    assert got(task, {"n": 1, "free": {"a": 1}, "d": "2024-01-01"}) == (1, {"a": 1}, {"d": day})
    assert task.lower({"n": 1, "free": 2, "d": day}, None) == {"n": 1, "free": 2, "d": "2024-01-01"}
    with pytest.raises(ValidationFailed, match="expected date, got int"):
        task.validate({"n": 1, "free": 2, "d": 3})

    def loose(n: int, **extra: Any) -> Any:
        return n, extra

    assert got(RegisteredTask.of(loose, TaskOptions(name="t")), {"n": 1, "a": "b"}) == (1, {"a": "b"})


def test_a_decorated_a_bound_and_a_partial_handler_are_resolved_where_they_were_written() -> None:
    elsewhere: dict[str, Any] = {"functools": functools}  # a module that knows no Item
    exec("def decorate(fn): return functools.wraps(fn)(lambda *args, **kwargs: fn(*args, **kwargs))", elsewhere)  # noqa: S102

    @elsewhere["decorate"]
    def wrapped(x: Item) -> Any:
        return x

    class Things:
        def method(self, x: Item) -> Any:
            return x

        def __call__(self, x: Item) -> Any:
            return x

    def two(y: int, x: Item) -> Any:
        return x

    for fn in (wrapped, Things().method, Things(), functools.partial(two, 1)):
        task = RegisteredTask.of(fn, TaskOptions(name="t"))
        assert got(task, {"x": {"price": 1}}) == Item(1.0)


def test_a_value_is_encoded_only_where_the_annotation_will_make_it_again() -> None:
    """A handler that was given a date must not get a text for it, unseen."""
    day = date(2024, 1, 1)
    for annotation in (Any, Money, dict[str, Any], list, int | Any):
        value = {"a": day} if annotation == dict[str, Any] else [day] if annotation is list else day
        with pytest.raises(InvalidType, match=r"payload\.x.* is a date, which JSON cannot carry"):
            stored(of(annotation), value)
    with pytest.raises(InvalidType, match=r"payload\.x is a Money"):
        stored(of(Item), Money())
    with pytest.raises(InvalidTask, match=r"payload\.x\.price is nan"):
        stored(of(Item), Item(float("nan")))
    cycle = Node("a")
    cycle.children.append(cycle)
    with pytest.raises(InvalidTask):
        stored(of(Node), cycle)


def test_what_msgspec_cannot_encode_is_the_encoders() -> None:
    def encoder(value: Any) -> Any:
        return float(5) if isinstance(value, Money) else value

    assert stored(of(Item), Item(Money()), encoder) == {"x": {"price": 5.0, "name": "", "tags": []}}  # type: ignore[arg-type]
    assert stored(of(Any), Money(), encoder) == {"x": 5.0}
    with pytest.raises(InvalidType, match=r"payload\.x is a Item"):
        stored(of(Item), Item(object()), encoder)  # type: ignore[arg-type]


# Handler classes


def test_a_handler_class_gets_its_payload_as_its_annotation_says() -> None:
    seen: list[Any] = []

    class Typed(TaskHandler):
        def validate(self, payload: dict[str, Any]) -> bool:
            seen.append(payload)
            return payload["order_id"] != 13

        def process(self, payload: Order) -> Any:
            return payload

    task = RegisteredTask.of(Typed, TaskOptions(name="t"))
    payload = {"order_id": 1, "items": [{"price": 2}]}
    assert got(task, payload) == {"order_id": 1, "items": [Item(2.0)]}
    assert seen == [payload]
    assert task.lower({"order_id": 1, "items": [Item(2.0)]}, None)["items"][0]["price"] == 2.0
    with pytest.raises(ValidationFailed, match=r"payload\.order_id: expected int, got str"):
        task.validate({"order_id": "1", "items": []})
    assert len(seen) == 1
    task.check({"order_id": 13, "items": []})  # the hook is the worker's to ask
    with pytest.raises(ValidationFailed, match="validate refused"):
        task.validate({"order_id": 13, "items": []})

    class Plain(TaskHandler):
        def process(self, payload: dict[str, Any]) -> Any:
            return payload

    task = RegisteredTask.of(Plain, TaskOptions(name="p"))
    assert got(task, payload) is payload


# From end to end


def test_a_task_travels_from_python_to_json_to_python(tandemq_app: TandemQ) -> None:
    seen: list[Any] = []

    @tandemq_app.task(name="ship")
    def ship(items: list[Item], at: datetime, colour: Colour = Colour.RED, **extra: Any) -> None:
        seen.append((items, at, colour, extra))

    at = datetime(2024, 1, 1, tzinfo=UTC)
    first = ship.enqueue([Item(1.0)], at, Colour.RED, note="x")
    second = tandemq_app.enqueue("ship", {"items": [{"price": 1}], "at": "2024-01-01T00:00:00Z"})
    run_until_idle(tandemq_app)
    assert seen == [([Item(1.0)], at, Colour.RED, {"note": "x"}), ([Item(1.0)], at, Colour.RED, {})]
    assert type(seen[1][0][0].price) is float
    assert tandemq_app.get(first.id).payload == (  # type: ignore[union-attr]
        '{"items":[{"price":1.0,"name":"","tags":[]}],"at":"2024-01-01T00:00:00Z","colour":"red","note":"x"}'
    )
    assert second.status == "succeeded"


def test_nothing_is_stored_of_a_batch_with_a_misfit(tandemq_app: TandemQ) -> None:
    @tandemq_app.task(name="ship")
    def ship(items: list[Item]) -> None: ...

    with pytest.raises(InvalidType) as refused:
        tandemq_app.enqueue_many(
            [ship.new([Item(1.0)]), NewTask("ship", {"items": [{"price": 1}] * 3 + [{"price": "x"}]})]
        )
    assert refused.value.field == "payload.items[3].price"
    assert "task 1 of the batch, 'ship'" in refused.value.__notes__
    assert tandemq_app.store.find(Filter(), limit=10).items == ()


def test_a_misfit_of_a_producer_without_the_handler_is_dead_at_once(tandemq_app: TandemQ) -> None:
    handle = tandemq_app.enqueue("ship", {"n": "5"})  # nobody here knows the type yet

    @tandemq_app.task(name="ship")
    def ship(n: int) -> None: ...

    assert run_until_idle(tandemq_app) == 1
    task = tandemq_app.get(handle.id)
    assert task is not None
    assert (task.status, task.dead_reason, task.attempts) == ("dead", "validation", 1)
    assert task.last_error == "payload.n: expected int, got str"


def test_the_library_is_imported_by_the_first_check_only() -> None:
    program = (
        "import sys, tandemq\n"
        "app = tandemq.TandemQ()\n"
        "@app.task\n"
        "def f(n: int) -> None: ...\n"
        "print('msgspec' in sys.modules)\n"
        "f.registered.check({'n': 1})\n"
        "print('msgspec' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "True"]


def test_an_encoder_is_asked_where_the_annotation_wants_what_it_makes() -> None:
    def pay(price: float) -> None: ...

    def encoder(value: Any) -> Any:
        return float(value) if isinstance(value, Decimal) else value

    checks = Checks(datetime(2030, 1, 1, tzinfo=UTC), 1000, {}, encoder)
    task = RegisteredTask.of(pay, TaskOptions(name="pay"))
    assert checks.row(NewTask("pay", {"price": Decimal("1.5")}), task).payload == '{"price":1.5}'
