"""The Lua commands of ``lua/``, run by their hash and loaded again when the server has forgotten them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import redis
from redis import exceptions as rx

from tandemq.broker.commands import ask

NAMES = ("promote", "advance_generation", "begin_rebuild", "rebuild_chunk")


@dataclass(frozen=True, slots=True)
class Script:
    """One command: its text and the hash that Redis knows it by."""

    name: str
    text: str
    sha: str

    def run(self, client: redis.Redis, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """EVALSHA; on NOSCRIPT (nothing has run then) EVAL, which also loads it."""
        try:
            return ask(client, "EVALSHA", self.sha, len(keys), *keys, *args)
        except rx.NoScriptError:
            return ask(client, "EVAL", self.text, len(keys), *keys, *args)


@cache
def script(name: str) -> Script:
    """The command in ``lua/<name>.lua``."""
    text = resources.files("tandemq.broker").joinpath("lua", f"{name}.lua").read_text("utf-8")
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
