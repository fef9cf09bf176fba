"""Workers that are no processes of ours: programs in any language that claim, heartbeat, complete and fail tasks.

They are given one token per task, not one per batch: a heartbeat of one task must not keep its neighbours. Nothing
here speaks HTTP; ``tandemq.http`` translates. What ends on a Python handler's side (listeners, ``on_dead_letter``)
does not run for them.

``Claims`` is the way from Redis to a lease, ``Work`` what is done with a lease. If this process dies at any line, a
claimed task's lease runs out and the reconciler judges it, as if its worker had died.
"""

from tandemq.remote.claims import Claims
from tandemq.remote.terms import Proof, Token, Wanted
from tandemq.remote.work import Beat, Failed, Work

__all__ = ["Beat", "Claims", "Failed", "Proof", "Token", "Wanted", "Work"]
