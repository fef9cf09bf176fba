"""One module a queue, run in that queue's own interpreter: ``enqueue(ref)``, the task, and ``left()``.

They import the ledger and their queue, nothing else of this repository.
"""
