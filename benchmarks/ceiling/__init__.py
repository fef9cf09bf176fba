"""The ceiling: what tandemq sends to its servers, from a bare loop without tandemq.

All of it is in ``hotpath``; ``python -m benchmarks.ceiling BATCH`` is one worker process, ``producing`` the producer's
side. No retries, no renewals, no reconciler, no mover, and no task function is called. That it sends the same as
tandemq is checked in every ``--quick`` run by ``benchmarks.traffic``.
"""
