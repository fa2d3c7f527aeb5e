# `make run` and `make test` are all that a fresh machine with Python 3.11 or 3.12 needs.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CLIENTS := .venv-clients
CLIENTS_READY := $(CLIENTS)/.installed

.DEFAULT_GOAL := help
.PHONY: help run test check bench

help:
	@echo "make run    start the daemon with the demo models on http://127.0.0.1:8000;"
	@echo "            ARGS='--port 9000' adds options of \`penstock serve\`"
	@echo "make test   the checks, then the whole test suite"
	@echo "make check  ruff, pyright and the import rules"
	@echo "make bench  measure the daemon on this machine (needs wrk)"
	@echo "Each sets up .venv first if need be, with \$$PYTHON ($(PYTHON))."

run: $(READY)
	@exec $(BIN)/penstock serve $(ARGS)

test: check $(CLIENTS_READY)
	$(BIN)/pytest -q

check: $(READY)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

bench: $(READY)
	@$(BIN)/python -m benchmarks

# torch first, by an exact pin: left to the project's own range, pip would take the newest build
# with all of CUDA.
$(READY): pyproject.toml
	@echo "Setting up .venv: torch, then penstock and its tools. A fresh one takes some minutes."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[dev]'
	@touch $@

# The list is complete, so pip need not search for what fits: that takes it minutes.
$(CLIENTS_READY): tests/clients/requirements.txt
	@echo "Setting up $(CLIENTS): the clients that the tests drive. It takes about a minute."
	@$(PYTHON) -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --no-compile --only-binary :all: --requirement $<
	@touch $@
