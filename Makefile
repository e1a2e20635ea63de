# One verb a job. Each sets up what it needs, in a virtual environment of its own (.venv).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/demo

.PHONY: help install demo test test-all chaos lint bench clean

help:  ## show the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# Torch first and pinned: an unpinned torch would pull gigabytes of CUDA libraries onto machines without a GPU.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Ludus needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet -c constraints.txt -e '.[all,dev]'
	@touch $@

install: $(VENV)/.installed  ## set up .venv with everything but the benchmarks' peers

demo: install  ## train the KUKA (minutes on two cores), evaluate it on 200 new starts, write the report
	rm -rf $(RUN)
	$(BIN)/ludus train kuka-pick-place --run-dir $(RUN)
	$(BIN)/ludus eval $(RUN) --episodes 200
	$(BIN)/ludus eval $(RUN) --episodes 200 --stochastic
	@echo "Open $(RUN)/report.html in a browser."

lint: install  ## ruff (lint, format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# MuJoCo Warp runs on a CPU as well, slowly: enough to hold it against MuJoCo.
$(VENV)/.warp: $(VENV)/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[gpu]'
	@touch $@

test: lint $(VENV)/.warp  ## lint, types and the tests (under 20 minutes on two cores)
	$(BIN)/python -m pytest

test-all: lint $(VENV)/.warp  ## the slow tests too
	$(BIN)/python -m pytest -m ''

# What it takes besides, e.g. CHAOS='--seed 3 --only "killed at a call"'; --help tells all.
CHAOS ?=
chaos: install  ## faults in their hundreds: kills, bad disks, lying environments, strangers' files (20 minutes)
	$(BIN)/python -m tests.chaos --jobs 2 $(CHAOS)

bench: install  ## speed beside Stable-Baselines3; see benchmarks/README.md for the others
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/speed.py

clean:  ## remove the virtual environment and caches, never runs
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist src/*.egg-info
