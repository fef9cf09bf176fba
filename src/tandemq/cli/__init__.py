"""The command line. Each verb parses, calls one method of the application, prints; ``exits`` knows every way out."""

from __future__ import annotations

from tandemq.cli.entry import main

__all__ = ["main"]
