"""The fixtures that tandemq ships for its users' tests, used here as well."""

from __future__ import annotations

from tandemq.testing import tandemq_app, tandemq_clock

__all__ = ["tandemq_app", "tandemq_clock"]
