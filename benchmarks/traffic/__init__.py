"""Whether the ceiling sends to the servers what tandemq sends: the general log and MONITOR of a small drain of each.

``record`` runs the drain, ``normalise`` takes ids, tokens and lengths out of the texts, ``grouping`` puts statements
together to transactions, ``comparing`` finds what differs. ``python -m benchmarks.traffic`` shows both sides in full.
"""
