"""``tandemq token``: in real processes where streams and exit codes count, in this one otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemq import TandemQ
from tandemq.cli import session
from tandemq.cli.entry import tandemq_command
from tandemq.core.settings import Settings
from tandemq.core.tokens import TOKEN_TEXT
from tests.api import app_of

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def run(env: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``run("list", code=0)``: the verb on real servers; its result, with what went to either stream."""
    monkeypatch.setattr(session, "TandemQ", lambda: app_of(env))
    monkeypatch.delenv("TANDEMQ_APP", raising=False)

    def invoke(*arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(tandemq_command, ["token", *arguments], standalone_mode=False)
        if done.exception is not None:
            # What the error handler makes of it is the business of test_cli_parsing.
            assert code, done.output
            return done
        assert (done.return_value or 0) == code, done.output
        return done

    return invoke


def items(run: Callable[..., Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("list", "--json").stdout)["items"]
    return found


def test_the_token_is_all_of_stdout_and_the_rest_is_none_of_it(tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_")}
    environ = {**clean, "PYTHONPATH": str(SRC), "TANDEMQ_DATA_DIR": str(tmp_path / "data")}

    def tandemq(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "tandemq", "token", *arguments]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    code, out, err = tandemq("create", "shop", "--role", "produce", "--role", "work", "--who", "ada")
    match = TOKEN_TEXT.fullmatch(out.rstrip("\n").encode())
    assert (code, out.count("\n")) == (0, 1)
    assert match is not None
    token_id, secret = match[1].decode(), match[2].decode()
    assert f"token {token_id} of shop (produce, work): it is not shown again" in err
    assert secret not in err

    # Pasted where the id belongs: refused, and not repeated.
    code, out, err = tandemq("revoke", f"tq_{token_id}_{secret}")
    assert code == 2
    assert "not the token" in err
    assert secret not in out + err
    code, out, err = tandemq("revoke", f"{token_id}_{secret}")
    assert code == 1
    assert "no live token has that id or name" in err
    assert secret not in out + err
    assert tandemq("create", "shop", "--role", "admin")[0] == 2
    assert tandemq("create", "shop")[0] == 2


def test_what_is_given_is_what_is_kept(run: Callable[..., Any]) -> None:
    run("create", "shop", "--role", "work", "--role", "read", "--expires", "90d", "--rate", "2.5", "--who", "ada")
    run("create", "plain", "--role", "operate", "--reason", "for the night")

    plain, shop = items(run)
    assert (shop["name"], shop["roles"], shop["rate"], shop["state"]) == ("shop", ["read", "work"], 2.5, "live")
    assert shop["created_by"] == "ada"
    made, ends = (shop[name] for name in ("created_at", "expires_at"))
    assert (made[10:], ends > made) == (ends[10:], True)
    assert (plain["name"], plain["expires_at"], plain["rate"]) == ("plain", None, 0.0)
    table = run("list").stdout
    assert "read,work" in table
    assert "2.5/s" in table


def test_a_name_with_several_is_refused_unless_all_are_meant(run: Callable[..., Any], env: Settings) -> None:
    for _ in range(2):
        run("create", "shop", "--role", "read")
    assert "2 live tokens are named" in str(run("revoke", "shop", code=2).exception)
    assert {token["state"] for token in items(run)} == {"live"}

    one, other = (token["id"] for token in items(run))
    assert run("revoke", one, "--reason", "old", "--who", "bob").stdout == f"revoked {one} (shop)\n"
    assert run("revoke", "shop").stdout == f"revoked {other} (shop)\n"
    run("create", "shop", "--role", "read")
    assert "revoked" in run("revoke", "shop", "--all").stdout
    assert f"{one} (shop) was revoked at" in run("revoke", one).stdout
    assert "no live token" in str(run("revoke", "nobody", code=1).exception)

    with TandemQ(env.database_url, env.redis_url, namespace=env.namespace) as app:
        deeds = [(r.action, r.who, r.reason, r.details.get("tokens")) for r in app.audit().items]
    assert deeds[2] == ("token_revoke", deeds[2][1], "", [other])
    assert deeds[3] == ("token_revoke", "bob", "old", [one])
    assert [action for action, *_ in deeds] == ["token_revoke", "token_create"] + ["token_revoke"] * 2 + [
        "token_create"
    ] * 2


def test_an_empty_list_says_so(run: Callable[..., Any]) -> None:
    assert run("list").stdout == "there is no token\n"
    assert items(run) == []


@pytest.mark.parametrize(
    "flags",
    [
        ["a b", "--role", "read"], ["tq_x", "--role", "read"], ["0123456789ab", "--role", "read"],
        ["x", "--role", "root"], ["x"], ["x", "--role", "read", "--rate", "-1"],
        ["x", "--role", "read", "--rate", "nan"],
        ["x", "--role", "read", "--rate", "soon"], ["x", "--role", "read", "--expires", "0s"],
        ["x", "--role", "read", "--expires", "later"], ["x", "--role", "read", "--expires", "99999999d"],
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_nothing_is_stored(run: Callable[..., Any], flags: list[str]) -> None:
    run("create", *flags, code=2)
    assert items(run) == []
