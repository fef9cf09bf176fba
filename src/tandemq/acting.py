"""Who acts: the name that the audit log gets where nobody says another one."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from tandemq.core.audit import Deed

__all__ = ["acting", "os_user"]


def os_user() -> str:
    """The user this process runs as, by the system's own list; not a variable that anybody may set."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def acting(
    action: str, who: str | None, reason: str, task_id: int = 0, details: Mapping[str, object] | None = None
) -> Deed:
    """A deed of ``who``, or of the user this process runs as."""
    return Deed(action=action, who=who or os_user(), reason=reason, task_id=task_id, details=details or {})
