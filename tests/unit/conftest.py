"""The fixtures that tandemq ships for its users' tests, used here as well."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tandemq.testing import tandemq_app, tandemq_clock

__all__ = ["tandemq_app", "tandemq_clock"]

# How long an example takes says something about the machine, not about the product.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
