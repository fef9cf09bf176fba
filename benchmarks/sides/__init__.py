"""One file per side: the task and how it is enqueued; how its worker is started is in ``benchmarks.registry``."""
