# Every target does its own set-up: a machine needs Python 3.11 or newer, make and the package registry.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
USABLE := $(VENV)/.usable

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint coverage mutants fuzz bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(USABLE) ## watch an agent be killed half-way and finished by another process
	@$(BIN)/python -m agentor demo

test: lint ## everything: format, lint, types, layers, tests, docs as tests
	@$(BIN)/python -m pytest -n 2 --dist worksteal

quick: $(INSTALLED) ## the fast tests only
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(INSTALLED) ## format, lint and types only
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m mypy

coverage: $(INSTALLED) ## every branch of the pure core, by the core's own tests; fails under 100 %
	@$(BIN)/python -m coverage run -m pytest tests/core -p no:xdist -m "not slow"
	@$(BIN)/python -m coverage report

mutants: $(INSTALLED) ## small faults in replay, decide, request and lease; fails if tests notice under 90 %
	@$(BIN)/python -m pip install --quiet --group mutants
	@rm -rf mutants
	@$(BIN)/python -m mutmut run --max-children 2
	@$(BIN)/python -m tests.mutation_score mutants

fuzz: $(INSTALLED) ## play simulated worlds for MINUTES=5, then the canaries and the faulty disk
	@$(BIN)/python -m fuzz --minutes $(or $(MINUTES),5)
	@$(BIN)/python -m fuzz --canary
	@$(BIN)/python -m fuzz --disk

bench: $(INSTALLED) ## agentor beside its peers on this machine: a table, docs/bench.json, docs/bench.svg
	@$(BIN)/python -m bench

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage dist build mutants
	find agentor tests fuzz -name __pycache__ -type d -prune -exec rm -rf {} +

# What a user needs, and no more: enough to watch it.
$(USABLE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "agentor needs Python 3.11 or newer, and '$(PYTHON)' is not. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# pip is upgraded first: `--group` needs pip 25.1, and older Pythons bring an older one.
$(INSTALLED): $(USABLE)
	@echo "adding what developers need ..."
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@
