"""Runs tasks: a supervisor process that holds the leases, and spawned children that run the handlers."""
