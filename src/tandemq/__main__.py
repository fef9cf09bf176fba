"""``python -m tandemq``."""

from __future__ import annotations

from tandemq.cli import main

if __name__ == "__main__":
    main()
