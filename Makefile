# Every target sets up what it needs, once; a second run installs nothing.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint types bench clean

help: ## show what can be run
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.paper: $(BIN)/python $(INPUTS)
	@echo "Setting up $(VENV) (once; a few minutes)"
	$(PIP) --editable ".[paper]"
	@touch $@

$(VENV)/.dev: $(VENV)/.paper $(INPUTS)
	@echo "Adding the development tools (once)"
	$(PIP) --editable ".[dev]"
	@touch $@

demo: $(VENV)/.paper ## the main result: a table, a figure, the claims
	@# Exit code 1 says that a claim of the paper did not hold, which is a result and not an error.
	$(BIN)/nupi reproduce svm-dynamics svm-sensitivity --out out/demo || [ $$? -eq 1 ]

test: $(VENV)/.dev ## every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto $(ARGS)

lint: $(VENV)/.dev ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## the strict type check
	$(BIN)/mypy

bench: $(VENV)/.dev ## speed beside Cooper and a hand-written loop, as ratios
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove the environment, caches and outputs
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
