# `make demo` shows what the lab does; `make test` shows that it works. Both need only Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed
RESULTS := benchmarks/results
MINIMUM := build/minimum
ALONE := build/alone
TEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest # else every process compiles all modules anew
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder # what tests of a file share is made once
FAST := tests/core tests/cli/test_cli.py tests/text tests/nn/test_scores.py tests/nn/test_attention.py tests/studies/test_schema.py \
	tests/studies/test_study.py tests/studies/test_rules.py tests/studies/test_statistics.py tests/studies/test_report.py \
	tests/studies/test_paper.py

.PHONY: setup demo test test-all test-gpu test-machines test-minimum test-wheel truth lint docs bench bench-gpu fault clean

setup: $(STAMP)

$(RUNS): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnlab needs Python >= 3.11; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[web]"
	touch $(RUNS)

$(STAMP): $(RUNS)
	$(BIN)/python -m pip install --quiet -c constraints.txt --group dev -e .
	touch $(STAMP)

demo: $(RUNS)
	$(BIN)/attnlab run shapes --scale demo

lint: setup
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/pyrefly check --summarize-errors
	$(BIN)/python -m tests.lint_docstrings

test: lint
	$(TEST) $(PARALLEL)

test-all: setup
	$(TEST) $(PARALLEL) -m ""

truth: setup
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_truth.py

test-gpu: setup # on a machine with a CUDA device
	ATTNLAB_TEST_CUDA=1 $(TEST) -n 4 --dist loadgroup tests/test_cuda.py

test-machines: setup
	.ci/machines

test-minimum: # the fast tests with the oldest versions of what is depended on
	$(PYTHON) -m venv $(MINIMUM)
	$(MINIMUM)/bin/python -m pip install --quiet -c constraints-min.txt -e . "torch==2.13.0" pytest hypothesis jsonschema beartype
	OMP_NUM_THREADS=1 $(MINIMUM)/bin/python -m pytest $(FAST)

test-wheel: # a wheel made from the sdist runs a study in an environment that holds nothing else
	rm -rf dist $(ALONE)
	$(PYTHON) -m venv $(ALONE)
	$(ALONE)/bin/python -m pip install --quiet -c constraints.txt build
	$(ALONE)/bin/python -m build --outdir dist .
	$(ALONE)/bin/python -m venv --clear $(ALONE)
	$(ALONE)/bin/python -m pip install --quiet -c constraints.txt dist/attnlab-*.whl
	cd $(ALONE) && bin/attnlab run shapes --scale demo --out runs

docs: setup # the site, into site/; it opens without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	$(BIN)/attnlab bench all --out $(RESULTS)
	$(BIN)/python docs/make_performance.py

bench-gpu: setup
	$(BIN)/attnlab bench all --device cuda --rounds 3 --out $(RESULTS)
	$(BIN)/python docs/make_performance.py

fault: setup # hours: what can happen to a study, hostile modules, broken requests; writes the tables of docs/reliability.md
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reliability.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/hostile.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/page_fuzzer.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis
