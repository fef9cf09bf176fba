"""The demo's work: files are read as Python reads them."""

from __future__ import annotations

import ast
import codecs
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandemq.demo.corpus import broken_files, standard_library
from tandemq.demo.measure import FLAKY_PERCENT, DoesNotParse, Measure, is_flaky, measure

SOURCE = "def a():\n    pass\n\n\nclass B:\n    async def c(self): return 'é'\n"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (SOURCE.encode(), Measure(1, 6, len(SOURCE.encode()), 2)),
        (codecs.BOM_UTF8 + SOURCE.encode(), Measure(1, 6, len(SOURCE.encode()) + 3, 2)),
        (b"# coding: latin-1\n" + SOURCE.encode("latin-1"), Measure(1, 7, len(SOURCE) + 18, 2)),
        (SOURCE.replace("\n", "\r\n").encode(), Measure(1, 6, len(SOURCE.encode()) + 6, 2)),
        (b"x = 1", Measure(1, 1, 5, 0)),
        (b"", Measure(1, 0, 0, 0)),
    ],
)
def test_a_file_is_measured_in_its_declared_encoding(raw: bytes, expected: Measure, tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    path.write_bytes(raw)

    assert measure(path) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"def",
        b'print "x"\n',
        b"# coding: nonsense\n",
        b'x = "\xfc"\n',
        b"x = 1\x00\n",
        b"(" * 1000,
        b"# coding: utf-8\n\nx = '\xff'\n",
        b"-" * 100_000 + b"1",
    ],
)
def test_a_file_that_is_no_python_is_told_apart_from_a_disk_that_fails(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    path.write_bytes(raw)

    with pytest.raises(DoesNotParse):
        measure(path)


def test_a_file_that_cannot_be_read_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        measure(tmp_path / "missing.py")


def test_threads_that_parse_at_once_do_not_disturb_each_other() -> None:
    # A collection in the middle of the parser lets another thread in: in CPython 3.11 that breaks both.
    def let_another_thread_in(phase: str, about: dict[str, int]) -> None:
        time.sleep(0)

    path = Path(ast.__file__)
    gc.callbacks.append(let_another_thread_in)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = set(pool.map(lambda _: measure(path), range(24)))
    finally:
        gc.callbacks.remove(let_another_thread_in)

    assert len(found) == 1


def test_the_same_files_are_flaky_every_time_and_about_five_percent_of_them() -> None:
    flaky = [n for n in range(20_000) if is_flaky(f"stdlib/file{n}.py")]

    assert len(flaky) / 20_000 == pytest.approx(FLAKY_PERCENT / 100, rel=0.1)
    assert flaky == [n for n in range(20_000) if is_flaky(f"stdlib/file{n}.py")]


def test_the_standard_library_is_found_without_installed_packages(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", "b/d.txt", "site-packages/e.py", "b/__pycache__/f.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere")

    assert [f.name for f in standard_library(tmp_path)] == ["stdlib/a.py", "stdlib/b/c.py"]
    assert "stdlib/ast.py" in {f.name for f in standard_library()}


@pytest.mark.parametrize("installed", [False, True])
def test_three_files_do_not_parse_with_and_without_a_source_checkout(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed:
        monkeypatch.setattr("tandemq.__file__", str(tmp_path / "site-packages" / "tandemq" / "__init__.py"))

    found = broken_files(tmp_path)

    assert len(found) == 3
    assert all(Path(f.path).is_relative_to(tmp_path) == installed for f in found)
    for file in found:
        with pytest.raises(DoesNotParse):
            measure(Path(file.path))
