"""``tandemq top``: queues, rates, workers and dead letters as they are now, and keys to act on them.

Four parts, of which only the last knows a terminal: ``picture`` reads (and remembers what rates are made of), ``model``
says what a key does, ``drawing`` makes lines of it, ``screen`` shows them by curses. Reading and acting have a thread
of their own (``watcher``), so that a server that does not answer never freezes the view.
"""
