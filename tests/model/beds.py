"""Worlds for the model: a fresh one for every run, where the disk has no say."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tandemq.core.settings import Settings
from tandemq.store.migrate import migrate
from tests.healing import World, open_world
from tests.model.model import Model
from tests.model.stage import TIMES, Broken, Command, DatabaseClock

#: Memory, where the machine has such a folder: each run makes a hundred commits that would wait for a disk.
MEMORY = Path("/dev/shm")


class Bed:
    """Makes worlds, one at a time: ``open`` gives an empty one."""

    def __init__(self, settings: Callable[[], Settings], *, real: bool) -> None:
        self._settings, self._real = settings, real

    @contextmanager
    def model(self) -> Iterator[Model]:
        """A model over empty servers."""
        clock = DatabaseClock()
        world = open_world(self._settings(), clock, real=self._real)
        if self._real:
            _empty(world)
        try:
            made = Model(world, clock)
            try:
                yield made
            finally:
                made.close()
        finally:
            world.close()

    def run(self, commands: Sequence[Command]) -> Model:
        """All of it, and the calm after it. Broken says which commands it takes: ``play`` runs them again."""
        with self.model() as model:
            try:
                for command in commands:
                    model.do(*command)
                model.calm()
            except Broken as broken:
                raise Broken(f"{broken}\nafter {json.dumps(model.commands)}") from None
            return model


@contextmanager
def embedded() -> Iterator[Bed]:
    """Over SQLite and a fakeredis in this process."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        template = folder / "template.db"
        migrate(_embedded(template))
        with closing(sqlite3.connect(template)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        def fresh() -> Settings:
            for suffix in ("", "-wal", "-shm"):
                (folder / f"world.db{suffix}").unlink(missing_ok=True)
            shutil.copy(template, folder / "world.db")
            return _embedded(folder / "world.db")

        yield Bed(fresh, real=False)


def _embedded(path: Path) -> Settings:
    given: dict[str, Any] = {"data_dir": str(path.parent), "namespace": "model", **TIMES}
    return Settings.load({}, database_url=f"sqlite:///{path}", redis_url="redis://localhost:1/0", **given)


def _empty(world: World) -> None:
    world.flush()
    for table in ("tasks", "claims", "task_attempts", "workers", "task_counts", "leaders", "pauses", "held", "kills"):
        world.sql(f"DELETE FROM {{t}}{table}")
