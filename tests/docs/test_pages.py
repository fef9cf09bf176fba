"""README and docs do what they say: every block that is not marked ``no-run`` is executed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.blocks import FENCE, Block, Reader, blocks, commands, needs_servers, pages
from tests.foreign import program
from tests.servers import ROOT, MySQLServer


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in pages() if not needs_servers(p)], ids=_name)
def test_a_page_runs_on_the_embedded_default(page: Path, tmp_path: Path) -> None:
    _read(page, Reader(tmp_path, {}), None)


@pytest.mark.parametrize("page", [p for p in pages() if needs_servers(p)], ids=_name)
def test_a_page_runs_on_real_servers(
    page: Path, tmp_path: Path, mysql_server: MySQLServer, mysql_url: str, redis_url: str, namespace: str
) -> None:
    urls = {"TANDEMQ_DATABASE_URL": mysql_url, "TANDEMQ_REDIS_URL": redis_url, "TANDEMQ_NAMESPACE": namespace}
    database = mysql_url.rsplit("/", 1)[1]

    def run_sql(text: str) -> None:
        for statement in filter(str.strip, text.split(";\n")):
            mysql_server.sql(statement, database=database)

    _read(page, Reader(tmp_path, urls), run_sql)


def _read(page: Path, reader: Reader, run_sql: Callable[[str], None] | None) -> None:
    if any("curl " in block.text for block in blocks(page)):
        program("curl")
    shutil.copytree(ROOT / "examples", reader.folder / "examples", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    try:
        for block in blocks(page):
            try:
                _do(block, reader, run_sql)
            except AssertionError as error:
                raise AssertionError(f"{_name(page)}, block at line {block.line}: {error}") from error
    finally:
        codes = reader.leave()
    assert set(codes) <= {0}


def _do(block: Block, reader: Reader, run_sql: Callable[[str], None] | None) -> None:
    if block.language == "python":
        reader.write(block)
    elif block.language == "console":
        for said in commands(block):
            reader.type(said)
    else:
        assert run_sql, "sql blocks need <!-- servers --> in the page"
        run_sql(block.text)


def test_every_link_within_the_repository_leads_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", page.read_text())):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{_name(page)}: {target}")
    assert broken == []


def test_the_readme_names_the_two_commands_near_its_top() -> None:
    top = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])

    assert "make demo" in top
    assert "make test" in top
