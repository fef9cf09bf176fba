"""Other Python queues under the same producer, ledger, faults and checker: ``python -m tests.chaos.peers --help``."""
