# Every target sets up what it needs, once; a second run installs nothing.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt

# Another torch than the one of constraints.txt: `make test TORCH=2.6.0 VENV=.venv-old`, or TORCH=newest.
TORCH  ?=
PINS   := $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)
# Python compiles what is imported when it is: all of torch at once would take half of the set-up's time.
# So let it keep what it compiles: else every worker and every process of a test compiles torch again, in seconds each.
unexport PYTHONDONTWRITEBYTECODE
PIP    := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint $(PINS)

.DEFAULT_GOAL := help
.PHONY: help demo test oldest nightly coverage mutants lint types docs wheel bench clean

help: ## show what can be run
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/constraints.txt: $(BIN)/python constraints.txt
	sed -e '$(if $(filter newest,$(TORCH)),/^torch==/d,s/^torch==.*/torch==$(TORCH)/)' constraints.txt > $@

$(VENV)/.paper: $(BIN)/python $(INPUTS) $(PINS)
	@echo "Setting up $(VENV) (once; a few minutes)"
	$(PIP) --editable ".[paper]"
	@touch $@

$(VENV)/.dev: $(VENV)/.paper $(INPUTS)
	@echo "Adding the development tools (once)"
	$(PIP) --editable ".[dev]"
	@touch $@

demo: $(VENV)/.paper ## the main result: a table, a figure, the claims
	@# Exit code 1 says that a claim of the paper did not hold, which is a result and not an error.
	$(BIN)/nupi reproduce svm-dynamics svm-sensitivity svm-cells --out out/demo || [ $$? -eq 1 ]

test: $(VENV)/.dev ## every test but the long ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not nightly" $(ARGS)

# Other people's warnings are not errors here: old versions warn of what newer ones have mended.
oldest: $(VENV)/.dev ## the front ends, with the oldest versions that are promised: make oldest VENV=.venv-oldest
	$(BIN)/python -m pip install --quiet transformers==4.50.0 accelerate==1.1.0 trl==0.17.0 datasets==3.0.0 \
		lightning==2.5.0 pytorch-lightning==2.5.0 scikit-learn==1.6.0
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto -o filterwarnings=default \
		tests/integrations/test_trainer*.py tests/integrations/test_trl.py tests/integrations/test_lightning.py \
		tests/integrations/test_default_dual.py tests/integrations/test_guides.py \
		tests/integrations/sklearn $(ARGS)

nightly: $(VENV)/.dev ## the long tests, and the property tests on ten times as many examples
	NUPI_HYPOTHESIS=nightly OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --timeout 3600 \
		-m "nightly or hypothesis" $(ARGS)

# What runs in other processes, such as the ranks of tests/many_processes, is not counted.
coverage: $(VENV)/.dev ## the tests again, and the share of lines and branches that they run
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto -m "not nightly" --cov --cov-report= $(ARGS)
	@$(BIN)/python -m coverage report --format=total | sed 's/.*/coverage: &%/' | tee out/coverage.txt

mutants: $(VENV)/.dev ## cosmic-ray's mutants of the core, one at a time: the share that the tests find
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants $(ARGS)

lint: $(VENV)/.dev ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## the strict type check
	$(BIN)/mypy

docs: $(VENV)/.dev ## the site, strictly: a broken link or an undocumented name is an error; into out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

wheel: $(BIN)/python $(PINS) ## a wheel, installed into an empty environment and used there
	PINS=$(PINS) bash tools/wheel.sh $(BIN)/python

bench: $(VENV)/.dev ## speed beside Cooper and a hand-written loop, as ratios
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove the environment, caches and outputs
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
