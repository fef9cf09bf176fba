"""Replay of dead letters: of a few by id, or as a run that paces itself, tries a sample first and outlives its process.

A run is a row of ``replay_runs`` with a row of ``replay_items`` per task. It is selected once (newest first; only what
had ended when it began), then moved in chunks, oldest first. One transaction moves a chunk's tasks and writes their
outcomes, the run's counters and its line of the audit log; then the ids are pushed. ``Runner`` takes these steps,
whoever calls it: the command line (``Replays.follow``) or the leading reconciler (``Keeper``), which carries out what
was detached, and what a killed process has left. Whoever carries a run out holds it for some seconds from each step
on; that only saves work: two at once are harmless.
"""

from tandemq.replaying.answers import Kind, Replayed, run_json
from tandemq.replaying.keeper import Keeper
from tandemq.replaying.orders import Orders, ReplayOptions, parse_canary, parse_edit, parse_rate, parse_share
from tandemq.replaying.replays import Progress, Replays

__all__ = [
    "Keeper",
    "Kind",
    "Orders",
    "Progress",
    "ReplayOptions",
    "Replayed",
    "Replays",
    "parse_canary",
    "parse_edit",
    "parse_rate",
    "parse_share",
    "run_json",
]
