"""Payloads changed on their way: a merge patch, and the checks that an enqueue would have made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandemq.core.codec import decode, encode_object
from tandemq.core.errors import InvalidTask
from tandemq.core.failure import describe
from tandemq.registry import Registry
from tandemq.replaying.orders import merged
from tandemq.store.runs import Candidate


class Editing:
    """The edit of one replay. Without a registration of its type here a task is validated by its worker alone."""

    def __init__(self, patch: Mapping[str, Any] | None, registry: Registry | None, max_payload_bytes: int) -> None:
        self._patch, self._registry, self._max_bytes = patch, registry, max_payload_bytes

    @property
    def is_wanted(self) -> bool:
        """Whether payloads have to be read at all."""
        return self._patch is not None

    def of(self, found: Sequence[Candidate]) -> tuple[dict[int, tuple[str, str]], dict[int, str]]:
        """By id: (payload as read, as it is to be), and why a task cannot be edited."""
        payloads: dict[int, tuple[str, str]] = {}
        refused: dict[int, str] = {}
        for one in found if self._patch is not None else ():
            if one.note or one.payload is None:
                continue
            try:
                payloads[one.id] = (one.payload, self._edited(one))
            except Exception as bad:  # whatever a handler's validation raises: the task stays dead, the run goes on
                told = describe(bad)
                refused[one.id] = told.message if isinstance(bad, InvalidTask) else f"{told.error_type}: {told.message}"
        return payloads, refused

    def _edited(self, one: Candidate) -> str:
        try:
            payload = decode(one.payload or "")
        except (ValueError, RecursionError):
            raise InvalidTask("its payload is no JSON, so there is nothing to edit", field="payload") from None
        if not isinstance(payload, dict):
            raise InvalidTask("its payload is no JSON object, so there is nothing to edit", field="payload")
        payload = merged(payload, self._patch)
        text = encode_object(payload, "payload")
        size = len(text.encode())
        if size > self._max_bytes:
            limit = f"the limit is {self._max_bytes} (TANDEMQ_MAX_PAYLOAD_BYTES)"
            raise InvalidTask(f"the edited payload is {size} bytes of JSON; {limit}", field="payload")
        task = self._registry.get(one.task_type) if self._registry is not None else None
        if task is not None:
            task.validate(payload)
        return text
