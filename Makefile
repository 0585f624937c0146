# Each command creates `.venv` and installs what it needs; a second call finds the stamp and starts at once.

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check --quiet
STAMP := $(VENV)/.installed
SMALL := $(VENV)/.installed-demo

# The first interpreter of at least 3.11 that can make a virtual environment.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

# Two processes on two cores: one thread each.
export OMP_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format docs bench benchmarks-smoke verdict tables notebooks wheel-check clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

# The demo needs a third of what the tests need.
$(SMALL): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "ctsattn needs Python 3.11 or newer; set PYTHON=/path/to/python" >&2; exit 2; }
	@echo "Installing into $(VENV) with $$($(PYTHON) --version); this takes some minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt "torch>=2.6"
	$(PIP) install --constraint constraints.txt --editable ".[demo]"
	@touch $(SMALL)

$(STAMP): $(SMALL)
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	@touch $(STAMP)

install: $(STAMP) ## create .venv and install everything

demo: $(SMALL) ## forecast weekly CO2 from irregular weeks: a table and a picture
	OMP_NUM_THREADS=2 $(BIN)/ctsattn demo

test: $(STAMP) ## all tests, notebooks included
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP) ## format check, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP) ## apply the format and the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## build the reference into site/, warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file docs/mkdocs.yml --strict --quiet

bench: $(STAMP) ## time the operator against stock attention, on the GPU where there is one
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	then $(BIN)/python -m experiments.kernels.gpu; \
	else $(BIN)/python -m experiments.kernels.cpu; fi

benchmarks-smoke: $(STAMP) ## every benchmark script once, at its smallest
	OMP_NUM_THREADS=2 $(BIN)/python -m experiments.benchmarks.run --smoke

verdict: $(STAMP) ## test the post's guess from the committed rows
	$(BIN)/python -m experiments.hypotheses.verdict

tables: $(STAMP) ## rewrite the README's tables from the committed result files
	$(BIN)/python -m experiments.readme

notebooks: $(STAMP) ## run the notebooks in place, at full settings
	$(BIN)/python notebooks/run.py

wheel-check: $(STAMP) ## build the wheel, install it in an empty environment, run the demo from it
	bash tests/check_wheel.sh

clean: ## remove the environment and what was built
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis *.egg-info
