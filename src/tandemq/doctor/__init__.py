"""Is this installation safe? Settings of both servers, tandemq's own, and how far Redis has drifted from the rows.

``Doctor`` asks, the modules beside it judge: ``database`` and ``redis_server`` what the servers say, ``settings`` what
was configured, ``drift`` what lies in Redis. Every look is bounded, whatever the size of the queues. What cannot be
asked (a managed server refuses, a server is away) is ``unknown`` or a finding of its own, never an error.
"""

from tandemq.doctor.doctor import Doctor, unsafe
from tandemq.doctor.finding import Diagnosis, Finding, Grade

__all__ = ["Diagnosis", "Doctor", "Finding", "Grade", "unsafe"]
