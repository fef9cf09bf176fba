"""The file that keeps what is purged: whole lines, on the disk, for its owner alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemq import TandemQ
from tandemq.archive import Archive
from tandemq.core.task import Task


@pytest.fixture
def task(tandemq_app: TandemQ) -> Task:
    stored = tandemq_app.get(tandemq_app.enqueue("t", {"text": "ä😀\n" * 9}).id)
    assert stored is not None
    return stored


def test_a_task_is_one_line_and_a_file_goes_on(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    for _ in range(2):
        with Archive(path) as archive:
            archive.write([task, task])
            archive.sync()

    lines = path.read_bytes().splitlines()
    assert [json.loads(line) for line in lines] == [task.to_json()] * 4
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b"", b'{"id": 1', b"x" * 200_000])
@pytest.mark.parametrize("whole", [b"", b'{"id": 7}\n', b"y" * 100_000 + b"\n"])
def test_a_line_that_was_only_begun_is_taken_back(task: Task, tmp_path: Path, whole: bytes, torn: bytes) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(whole + torn)
    with Archive(path) as archive:
        archive.write([task])

    assert path.read_bytes()[: len(whole)] == whole
    assert json.loads(path.read_bytes()[len(whole) :]) == task.to_json()


def test_two_at_once_are_refused_and_the_first_goes_on(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    with Archive(path) as first:
        first.write([task])
        with pytest.raises(BlockingIOError):
            Archive(path)
        first.write([task])

    assert len(path.read_bytes().splitlines()) == 2


def test_a_place_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    before = _open_files()
    for path in (tmp_path / "none" / "a", tmp_path):
        with pytest.raises(OSError, match=r"No such file|Is a directory"):
            Archive(path)
    assert _open_files() == before


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
