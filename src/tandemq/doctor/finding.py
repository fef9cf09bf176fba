"""What the doctor says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Grade(StrEnum):
    """How bad it is, in this order. ``fault``: tasks can be lost, held up for good, or not be taken at all."""

    OK = "ok"
    INFO = "info"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``name`` is stable; ``subject``: the queue or key it is about, where there are several.

    ``says``: what was found and what was wanted; ``remedy``: the command or setting that mends it. ``fixed``: what
    ``fix`` has done about it, in which case ``level`` is ``info``.
    """

    name: str
    level: Grade
    says: str
    remedy: str = ""
    subject: str = ""
    fixed: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        return "; ".join(part for part in (self.says, f"fixed: {self.fixed}" if self.fixed else self.remedy) if part)

    def to_json(self) -> dict[str, Any]:
        """A flat JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Every finding, in the order in which things were looked at. ``unreachable``: servers that did not answer."""

    findings: tuple[Finding, ...]
    unreachable: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def of(self, *grades: Grade) -> list[Finding]:
        """The findings of these grades."""
        return [finding for finding in self.findings if finding.level in grades]

    @property
    def healthy(self) -> bool:
        """No fault, and both servers answered."""
        return not self.unreachable and not self.of(Grade.FAULT)

    @property
    def worst(self) -> Grade:
        """The worst grade found."""
        grades = list(Grade)
        return max((finding.level for finding in self.findings), key=grades.index, default=Grade.OK)

    def to_json(self) -> dict[str, Any]:
        """``{"level", "unreachable", "findings": [...]}``."""
        return {
            "level": self.worst.value,
            "unreachable": list(self.unreachable),
            "findings": [finding.to_json() for finding in self.findings],
        }
