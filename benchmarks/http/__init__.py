"""``POST /jobs`` beside a plain handler: ``python -m benchmarks.http --help``."""
