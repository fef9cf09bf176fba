"""Texts that leave the process (logs, errors) without the passwords that are in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "***"
#: A shorter secret would be found in half of all words.
SHORTEST = 4
#: ``scheme://user:password@``, greedy: a password may hold an ``@`` where somebody forgot to encode it.
_LOGIN = re.compile(r"(?<=://)[^\s'\"<>]*@")
#: What is called a password: in quotes up to the closing one (escaped ones too, as in JSON within a text), else a word.
_PASSWORD = re.compile(
    r"""(?i)\b((?:password|passwd|pwd)\\*['"]?\s*[=:]\s*)(?:(\\*(['"]))(?!\3).+?\2|(\\*['"]?)[^\s&'",;)}\\]+)"""
)
#: An HTTP login: a scheme and what comes after it, or the one word.
_AUTHORIZATION = re.compile(
    r"""(?i)\b(authorization\\*['"]?\s*[=:]\s*\\*['"]?)(?:(?:basic|bearer|token|digest|negotiate|apikey)\s+)?[^\s'",;)}\\]+"""
)
#: A field of this name is a secret whatever it holds.
SECRET_NAME: Final = re.compile(r"(?i)(?:.*_)?(?:password|passwd|pwd|authorization|secret)")


class Mask:
    """Hides what stands before the ``@`` of a URL, what is called a password, and the secrets it was given.

    Cheap for a text without any: four searches.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({s for s in secrets if len(s) >= SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def known(self, text: str) -> str:
        """The text without the secrets that were given, and otherwise as it is: it may be a user's own."""
        return text if self._known is None else self._known.sub(HIDDEN, text)

    def __call__(self, text: str) -> str:
        """The text without them."""
        text = self.known(text)
        if "://" in text:
            text = _LOGIN.sub(f"{HIDDEN}@", text)
        return _AUTHORIZATION.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1\2\4{HIDDEN}\2", text))
