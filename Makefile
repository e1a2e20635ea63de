# One verb a job. Each sets up what it needs, in a virtual environment of its own (.venv).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VENV4 := .venv-mujoco4
MUJOCO_TESTS := $(addprefix tests/test_,$(addsuffix .py,kuka locomotion registration gym_env gym_workers resume \
  motion_library report record starts ghost warp check_physics new export)) $(wildcard tests/test_humanoid*.py)
# A new folder every time, and not from the shell's environment: nothing of the user's is ever overwritten.
RUN := runs/demo/$(shell date +%Y%m%d-%H%M%S)

# The tests start Python hundreds of times: each would compile all of Ludus again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-all test-gpu test-mujoco4 chaos lint bench pages docs clean

help:  ## show the verbs
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# Torch first and pinned: an unpinned torch would pull gigabytes of CUDA libraries onto machines without a GPU.
# Of mjlab the G1's model alone is used.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Ludus needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet -c constraints.txt -e '.[all,dev,docs]'
	$(BIN)/pip install --quiet -c constraints.txt --no-deps mjlab || echo "Without mjlab: tests of the G1 are skipped."
	@touch $@

install: $(VENV)/.installed  ## set up .venv with everything but the benchmarks' peers

demo: install  ## train the KUKA (minutes on two cores), evaluate it on 200 new starts, write the report
	$(BIN)/ludus train kuka-pick-place --run-dir "$(RUN)"
	$(BIN)/ludus eval "$(RUN)" --episodes 200 --stochastic
	@echo "Open $(RUN)/report.html in a browser."

lint: install  ## ruff (lint, format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# MuJoCo Warp runs on a CPU as well, slowly: enough to hold it against MuJoCo.
$(VENV)/.warp: $(VENV)/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[gpu]'
	@touch $@

# Each process takes up to 2 GB. What one has not begun, an idle one takes over. Of the quick tests many wait for
# processes that they start: two more make use of the cores meanwhile. The slow ones fill two cores by themselves.
# The types are checked beside them, or a core would have nothing to do for that long.
WORKERS ?= 4
WORKERS_FOR_ALL ?= 2
PYTEST_FLAGS ?=

test: $(VENV)/.warp  ## lint, types and the tests (about 6 minutes on two cores)
	@$(MAKE) --no-print-directory -j 2 pytest lint

test-all: $(VENV)/.warp  ## the slow tests too (about 25 minutes)
	@$(MAKE) --no-print-directory -j 2 pytest lint PYTEST_FLAGS="-m ''" WORKERS=$(WORKERS_FOR_ALL)

.PHONY: pytest
pytest:
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_FLAGS)

# In the environment of PYTHON, as it is: a machine with a GPU may have no network. In one process: it has one GPU.
test-gpu:  ## what is about a GPU, on the one that is there; needs PYTHON with torch, pytest and what Ludus needs
	$(PYTHON) -m pytest -m gpu

# MuJoCo 4 in a virtual environment of its own: moving one to and fro between 3.17 and 4.0 breaks its import.
$(VENV4)/.installed: pyproject.toml constraints.txt
	rm -rf $(VENV4)
	$(PYTHON) -m venv $(VENV4)
	grep -v '^mujoco' constraints.txt > $(VENV4)/constraints.txt
	$(VENV4)/bin/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(VENV4)/bin/pip install --quiet -c $(VENV4)/constraints.txt -e '.[all,dev,gpu]' 'mujoco>=4,<5' 'mujoco-warp>=4,<5'
	@touch $@

test-mujoco4: $(VENV4)/.installed  ## the tests that touch MuJoCo, with MuJoCo 4 (.venv-mujoco4)
	$(VENV4)/bin/python -m pytest $(MUJOCO_TESTS)

# What it takes besides, e.g. CHAOS='--seed 3 --only "killed at a call"'; --help tells all.
CHAOS ?=
chaos: install  ## faults in their hundreds: kills, bad disks, lying environments, strangers' files (20 minutes)
	$(BIN)/python -m tests.chaos --jobs 2 $(CHAOS)

bench: install  ## speed beside Stable-Baselines3; see benchmarks/README.md for the others
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/speed.py

pages: install  ## write docs/benchmarks.md and the figures that pages quote, from benchmarks/results/
	PYTHONPATH=tools $(BIN)/python tools/pages/write.py

# NO_MKDOCS_2_WARNING: the theme's advertisement is nothing to whoever builds this site.
docs: install  ## build the site (site/); links that lead nowhere are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "Read it: $(BIN)/python -m http.server --directory site 8000"

clean:  ## remove the virtual environments and caches, never runs
	rm -rf $(VENV) $(VENV4) .pytest_cache .mypy_cache .ruff_cache build dist site src/*.egg-info
