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
_PASSWORD = re.compile(
    r"(?i)\b((?:password|passwd|pwd|authorization)['\"]?\s*[=:]\s*(?:bearer\s+)?['\"]?)[^\s&'\",;)}]+"
)


class Mask:
    """Hides what stands before the ``@`` of a URL, what is called a password, and the secrets it was given.

    Cheap for a text without any: three searches.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({s for s in secrets if len(s) >= SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        """The text without them."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        if "://" in text:
            text = _LOGIN.sub(f"{HIDDEN}@", text)
        return _PASSWORD.sub(rf"\1{HIDDEN}", text)
