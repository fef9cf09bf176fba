# Two commands do everything on a fresh machine with git, make and Python 3.11 or newer: make demo, make test.
# Works with GNU make 3.81 and without root. PYTHON=/path/to/python chooses the interpreter.
SHELL = /bin/sh
export PYTHON

.PHONY: help demo test test-fast test-least scenarios chaos chaos-long fuzz bench bench-scale check clean

help:
	@echo 'make demo       run the queue on real input, no server needed (at most a minute)'
	@echo '                DATABASE_URL=mysql+pymysql://... REDIS_URL=redis://... runs it on real servers'
	@echo 'make test       everything that is checked, on real servers that it provides (at most ten minutes)'
	@echo 'make test-fast  all tests once more on mysqlclient and hiredis (tandemq[fast]), which it builds in .venv-fast'
	@echo 'make test-least all tests on real servers once more as the users of deploy/mysql and deploy/redis'
	@echo 'make check      the quick part of it: lint, types, tests without servers'
	@echo 'make scenarios  the field scenarios at their full size'
	@echo 'make chaos      20,000 tasks under every fault, and broken copies of tandemq that must be found out (six minutes)'
	@echo 'make chaos-long  the same with 1,000,000 tasks and 1,000 kills (ARGS=--help says what can be chosen)'
	@echo 'make fuzz       10,000 requests that schemathesis makes of the OpenAPI document (ARGS=--seed N repeats a run)'
	@echo 'make bench      measure tandemq beside its ceiling and other queues (ARGS=--quick: 3 minutes, no peers)'
	@echo 'make bench-scale  with millions of finished and of waiting rows, and memory over a million tasks'
	@echo 'make clean      remove what the above made'

.venv/.embedded: pyproject.toml dev/make_venv.sh
	@sh dev/make_venv.sh embedded

.venv/.dev: pyproject.toml dev/make_venv.sh
	@sh dev/make_venv.sh dev

# Only what is given on the command line counts: a DATABASE_URL in the environment is some other program's.
ifeq ($(origin DATABASE_URL),command line)
demo_urls += TANDEMQ_DATABASE_URL='$(DATABASE_URL)'
endif
ifeq ($(origin REDIS_URL),command line)
demo_urls += TANDEMQ_REDIS_URL='$(REDIS_URL)'
endif
demo: .venv/.embedded
	@$(demo_urls) .venv/bin/tandemq demo

test: .venv/.dev
	@sh dev/run_tests.sh

test-fast:
	@sh dev/run_tests.sh --fast

test-least: .venv/.dev
	@sh dev/provide_servers.sh
	@TANDEMQ_TEST_LEAST_PRIVILEGE=1 .venv/bin/pytest -q -n 3 --dist loadfile -m 'servers and not prometheus and not tools'

scenarios: .venv/.dev
	@sh dev/provide_servers.sh
	@TANDEMQ_SCENARIOS=full .venv/bin/pytest -q tests/scenarios

chaos: .venv/.dev
	@sh dev/provide_servers.sh
	@.venv/bin/python -m tests.chaos $(ARGS)

chaos-long: .venv/.dev
	@sh dev/provide_servers.sh
	@.venv/bin/python -m tests.chaos --long $(ARGS)

fuzz: .venv/.dev
	@sh dev/provide_servers.sh
	@.venv/bin/python -m tests.http.fuzz $(ARGS)

bench: .venv/.dev
	@sh dev/provide_servers.sh
	@.venv/bin/python -m benchmarks $(ARGS)

bench-scale: .venv/.dev
	@sh dev/provide_servers.sh
	@.venv/bin/python -m benchmarks.scale $(ARGS)

check: .venv/.dev
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/pytest -q -m 'not servers' tests/unit tests/contract

clean:
	rm -rf .venv .venv-fast .venv-tools .cache .tandemq build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
