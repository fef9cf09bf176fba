"""``make fuzz``: schemathesis with all checks and phases, each role for itself, on servers of its own.

At least ``--cases`` requests in all, by default 10,000; ends with 1 if anything is found. ``--seed`` repeats a run.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemq.core.settings import Settings
from tandemq.store.migrate import migrate
from tests.api import ServedApi, served
from tests.http.fuzz.running import ROLES, run, tokens, with_tasks
from tests.servers import MySQLServer, RedisServer

#: Of all cases; a role that may use few routes needs fewer of them.
SHARES = {"read": 0.15, "produce": 0.15, "work": 0.2, "operate": 0.5}


@contextmanager
def api(directory: Path) -> Iterator[ServedApi]:
    """The API over servers that end with it."""
    mysql, redis = MySQLServer(), RedisServer()
    mysql.start()
    redis.start()
    try:
        urls = {"database_url": mysql.url(mysql.create_database()), "redis_url": redis.url()}
        settings = Settings.load({}, **urls, namespace="fuzz", data_dir=str(directory / "data"))
        migrate(settings)
        with served(settings, max_wait_s=0.05) as made:
            yield made
    finally:
        redis.discard()
        mysql.discard()


def told(answers: Counter[tuple[str, int]]) -> str:
    """How many of which status."""
    by_status: Counter[int] = Counter()
    for (_, status), n in answers.items():
        by_status[status] += n
    return ", ".join(f"{n} x {status}" for status, n in sorted(by_status.items()))


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    logging.disable()  # each refused token is a line
    done, is_clean, began = 0, True, time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, api(Path(temporary)) as made:
        with_tasks(made.app)
        of_role = tokens(made.app)
        for role in ROLES:
            so_far, examples, seed = 0, 40, given.seed
            while so_far < SHARES[role] * given.cases:
                found = run(made, of_role, role, Path(temporary) / role, examples=examples, seed=seed)
                print(f"{role}: {found.cases} cases with seed {seed}: {told(found.answers)}", flush=True)
                if faults := found.faults(role):
                    print(found.text, *faults, sep="\n")
                    is_clean = False
                    break
                so_far, examples, seed = so_far + found.cases, examples * 2, seed + 1
            done += so_far
    print(f"{done} cases in {time.monotonic() - began:.0f} s, {'nothing found' if is_clean else 'FOUND SOMETHING'}")
    return 0 if is_clean and done >= given.cases else 1


if __name__ == "__main__":
    sys.exit(main())
