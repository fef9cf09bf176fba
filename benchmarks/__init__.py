"""Side by side measurements of tandemq, its bare-loop ceiling and other queues: ``python -m benchmarks --help``."""
