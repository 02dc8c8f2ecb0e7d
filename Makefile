# `make demo` shows what the lab does; `make test` shows that it works. Both need only Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RESULTS := benchmarks/results

.PHONY: setup demo test test-doctor test-machines truth lint bench bench-gpu clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnlab needs Python >= 3.11; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt --group dev -e .
	touch $(STAMP)

demo: setup
	$(BIN)/attnlab run shapes --seeds 3-8

lint: setup
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/pyrefly check --summarize-errors
	$(BIN)/python -m tests.lint_docstrings

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test-doctor: setup
	ATTNLAB_ALL_PATIENTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/doctor

truth: setup
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_truth.py

test-machines: setup
	.ci/machines

bench: setup
	$(BIN)/attnlab bench all --out $(RESULTS)
	$(BIN)/python docs/make_performance.py

bench-gpu: setup
	$(BIN)/attnlab bench all --device cuda --rounds 3 --out $(RESULTS)
	$(BIN)/python docs/make_performance.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
