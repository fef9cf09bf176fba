"""Cutting long lists so that no statement comes near the server's max_allowed_packet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def by_size(items: Iterable[T], size_of: Callable[[T], int], limit: int) -> list[list[T]]:
    """Runs of items whose sizes add up to at most ``limit``; a bigger item goes alone."""
    chunks: list[list[T]] = []
    total = limit
    for item in items:
        size = size_of(item)
        if not chunks or total + size > limit:
            chunks.append([])
            total = 0
        chunks[-1].append(item)
        total += size
    return chunks
