from __future__ import annotations

import re
from importlib import resources

import pytest

from tandemq.broker.scripts import NAMES, script


def test_every_lua_file_is_a_named_command() -> None:
    folder = resources.files("tandemq.broker").joinpath("lua")

    assert {f.name for f in folder.iterdir() if f.name.endswith(".lua")} == {f"{name}.lua" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_script_touches_only_keys_that_it_is_given(name: str) -> None:
    calls = re.findall(r"redis\.p?call\((.*)", script(name).text)

    assert calls
    for arguments in calls:
        assert re.match(r"('[A-Z]+'|ARGV\[at\]), KEYS\[[0-9i]+\]", arguments), arguments


@pytest.mark.parametrize("name", NAMES)
def test_a_script_s_header_says_its_keys_arguments_answer_and_atomicity(name: str) -> None:
    header = script(name).text.partition("\nlocal")[0]

    assert all(word in header for word in ("-- KEYS[1]", "-- ARGV[1]", "-- answer", "tomic"))
