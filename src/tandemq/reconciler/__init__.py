"""The one healer. MySQL remembers, so whatever Redis or a process loses is found by comparing; this package compares.

A pass: generation (was Redis flushed or set back? rebuild), expiry (leases nobody renews), tasks whose ``expires``
has passed, window (due rows whose id is nowhere), sweep (running rows without a lease), records of old workers.
Nothing depends on the generation but speed: the window alone finds every lost id, at the latest when its turn comes.
"""

from tandemq.reconciler.reconciler import OnDead, Reconciler
from tandemq.reconciler.report import Report

__all__ = ["OnDead", "Reconciler", "Report"]
