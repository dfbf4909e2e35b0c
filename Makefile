# Two commands do all set-up: `make run` and `make test`.
.DEFAULT_GOAL := help
.PHONY: help run unit test test-all test-kube kill-kube kube lint bench release setup clean
BIN := .venv/bin
# One test more at once than there are cores, for most wait for programs half of their time; those of one file, or of
# a folder below tests/real or tests/faults, one after another, for they share what they made: tests/support/distribution.py.
SEVERAL := --numprocesses $(shell expr $$(nproc) + 1) --dist loadscope --no-loadscope-reorder
# The files of unit tests lie in memory where a gigabyte of it is free and programs may be started from there.
IN_MEMORY = $(shell findmnt -no OPTIONS /dev/shm | grep -qv noexec && [ $$(df --output=avail /dev/shm | tail -1) -gt 1000000 ] \
	&& echo TMPDIR=/dev/shm)

# Each test run starts hundreds of Pythons. Where this variable is set, as in many containers, each of them compiles all
# that it imports anew: to collect tests/unit/cli took 11.7 s of CPU so, and 6.8 s without.
unexport PYTHONDONTWRITEBYTECODE

# Seconds of patience are multiplied by this where all tests run at once; see tests/support/waiting.py.
export REFIT_TEST_PATIENCE ?= 20

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: setup ## set up this machine, build the first image, start a session, move it onto the next build
	$(BIN)/refit demo

unit: ## the unit tests that take no time, in a minute; no root, no network
	$(IN_MEMORY) $(BIN)/pytest $(SEVERAL) --hypothesis-profile few -m "not long and not slow" tests/unit

test: setup lint ## all checks and tests but the long ones
	$(BIN)/pytest $(SEVERAL) --hypothesis-profile repeatable -m "not long"

test-all: ## all checks and tests, the long ones too
	scripts/setup --tests-all
	nice scripts/kube build & \
	$(MAKE) lint && $(BIN)/pytest $(SEVERAL)

kube: ## compile a Kubernetes for tests, once, and start it with two nodes; scripts/kube down ends it
	scripts/setup --tests-all
	scripts/kube up 2

test-kube: kube ## the tests of sessions on Kubernetes
	$(BIN)/pytest tests/kube

kill-kube: kube ## kill moves in that cluster at 100 random moments, which takes most of an hour
	REFIT_TEST_KILLS=100 $(BIN)/pytest -s tests/kube/test_random_kills.py

lint: setup ## formatting, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: setup ## measure Refit beside other tools; make bench ONLY=matrix measures one thing
	$(BIN)/python -m bench $(ONLY)

release: setup ## build, check and publish all that can be built here, and write the README's table of images; takes long
	$(BIN)/refit up
	$(BIN)/refit build; status=$$?; $(BIN)/refit release table --write README.md && exit $$status

setup: ## only set up: system packages, and Python packages into .venv
	@scripts/setup

clean: ## remove .venv and all caches of this checkout; Refit's own state stays (see: refit reset)
	rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
