"""What one pass of the reconciler did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tandemq.core.errors import StoreUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Counts of one pass, for the log, the CLI and tests; all zero means there was nothing to heal.

    ``looked``: rows that the windows compared; ``missing``: due rows whose id was not in Redis (in a worker's hands,
    or lost: only the second look tells); ``repushed``: those pushed. ``expired``: leases ended; ``renewed``: leases
    that looked expired and had been renewed meanwhile; ``overdue``: leases past their end that were left alone
    because expiry is not ``armed`` yet (see ``Contact``). ``retried``, ``dead``, ``cancelled``: what became of the
    lost tasks. ``discarded``: tasks whose ``expires`` passed before a start. ``orphans``: running rows without a
    claims row that were healed. ``rebuilt``: queues whose lists were emptied to be filled from MySQL, ``refilled``
    ids put back by rebuilds, ``building`` queues not finished yet. ``forgotten``: records of workers deleted;
    ``merged``: counters of old hours that went into their day; ``pruned``: tasks that retention removed; ``woken``:
    tasks of a type whose pause is over.
    """

    levels: int = 0
    looked: int = 0
    missing: int = 0
    repushed: int = 0
    armed: bool = False
    overdue: int = 0
    expired: int = 0
    renewed: int = 0
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    discarded: int = 0
    orphans: int = 0
    rebuilt: int = 0
    refilled: int = 0
    building: int = 0
    forgotten: int = 0
    merged: int = 0
    pruned: int = 0
    woken: int = 0
    alarms: tuple[str, ...] = ()

    @property
    def quiet(self) -> bool:
        """Nothing was healed and nothing is wrong."""
        return not self.alarms and not any(
            (
                self.repushed,
                self.expired,
                self.discarded,
                self.orphans,
                self.rebuilt,
                self.refilled,
                self.building,
                self.pruned,
                self.woken,
            )
        )

    def to_json(self) -> dict[str, Any]:
        """A flat JSON object; ``alarms`` is a list of sentences."""
        return asdict(self) | {"alarms": list(self.alarms)}


class Tally:
    """Collects a report while the pass runs."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.armed = False
        #: The last part that this user has no right to.
        self.refused: StoreUnavailable | None = None
        self._alarms: dict[str, None] = {}

    def add(self, **counts: int) -> None:
        """Add to counts of ``Report`` by name."""
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0) + count

    def alarm(self, sentence: str) -> None:
        """Something a person should look at; the same sentence counts once."""
        self._alarms[sentence] = None

    def report(self) -> Report:
        """The frozen result."""
        return Report(armed=self.armed, alarms=tuple(self._alarms), **self._counts)
