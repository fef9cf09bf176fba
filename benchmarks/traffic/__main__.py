"""``python -m benchmarks.traffic``: what tandemq and the ceiling send per batch, in full, and what differs."""

from __future__ import annotations

import argparse
import sys

from benchmarks.servers import Servers
from benchmarks.traffic.checking import check
from benchmarks.traffic.grouping import by_kind
from benchmarks.traffic.record import Recorded


def show(recorded: Recorded) -> None:
    """Its transactions, by kind, the most frequent first."""
    for kind, counts in by_kind(recorded.sql).items():
        for signature, count in counts.most_common():
            print(f"\n{recorded.side}, {kind}, {count} times, {len(signature)} packets:")
            print("\n".join(f"  {packet}" for packet in signature))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traffic", description=__doc__)
    parser.add_argument("--driver", default="pymysql", choices=("pymysql", "mysqldb"))
    args = parser.parse_args()
    servers = Servers()
    try:
        found, recorded = check(servers, driver=args.driver)
    finally:
        servers.discard()
    for one in recorded:
        show(one)
    print()
    print("\n".join(found) or "the same statements and commands per batch")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
