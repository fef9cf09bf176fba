"""One file per side: the task and how it is enqueued; how its worker is started is in ``benchmarks.registry``.

``enqueue(order_id)`` and ``enqueue_stamp(order_id)`` send one task, ``enqueue_bulk(order_ids)`` many in one call (None:
the side has no such call). Each may be a coroutine function; a side with both a blocking and an async interface has
``aenqueue`` too, and the faster counts. Best settings are in the file's docstring.
"""
