"""What is installed from the wheel works without the source checkout: it carries the SQL files and the Lua scripts."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_wheel_carries_sql_and_lua_and_migrates_from_them(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
    )
    (wheel,) = tmp_path.glob("tandemq-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = {p.relative_to(ROOT / "sql").as_posix() for p in (ROOT / "sql").rglob("*.sql")}
    assert source
    assert {f"tandemq/sql/{name}" for name in source} <= names
    assert {f"tandemq/broker/lua/{p.name}" for p in (ROOT / "src/tandemq/broker/lua").glob("*.lua")} <= names
    assert "tandemq/py.typed" in names

    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    program = (
        "import tandemq, tandemq.store.migrate as m; from tandemq import TandemQ;"
        f"assert tandemq.__file__.startswith({str(installed)!r}), tandemq.__file__;"
        "app = TandemQ(data_dir='data'); print(app.enqueue('x', {}).id, m.sql_dir())"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", str(installed / "tandemq" / "sql")]
