"""tandemq: a durable hybrid task queue. MySQL remembers, Redis runs."""
