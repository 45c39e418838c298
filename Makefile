# Two commands for a fresh machine: `make demo` and `make test`. Both make the environment first, once.
#   PYTHON=...  the Python (3.11 or newer) to build the environment with; found by itself otherwise
#   VENV=...    where the environment lies (default .venv)
SHELL := /bin/sh
VENV ?= .venv
PYTHON ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=

candidates := $(if $(strip $(PYTHON)),$(PYTHON),python3.13 python3.12 python3.11 python3 python)
bin := $(VENV)/bin
stamp := $(VENV)/.installed

.PHONY: help setup demo test bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    environment, then a small transformer trained to its Eureka-moment (a few minutes)"
	@echo "make test    environment, then ruff, mypy and the whole test suite"
	@echo "make bench   environment, then the speed and memory table (BENCH_ARGS='--quick' for a glance)"
	@echo "make setup   the environment alone, in $(VENV); delete that folder to make it anew"
	@echo "make clean   removes caches and build leftovers; runs, results and $(VENV) stay"
	@echo "PYTHON=python3.12 chooses the Python, VENV=folder the place of the environment."

setup: $(stamp)

# The candidates are run, not only looked up: a name on the PATH may be a shim with nothing behind it.
$(stamp): pyproject.toml constraints.txt
	@set -eu; \
	if ! "$(bin)/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=; bare=; \
	    for python in $(candidates); do \
	        "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	        if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then found=$$python; break; fi; \
	        bare=$${bare:-$$python}; \
	    done; \
	    if [ -z "$$found" ] && [ -n "$$bare" ]; then \
	        echo "$$bare has no venv module: install it (on Debian and Ubuntu the package python3-venv)." >&2; exit 1; \
	    elif [ -z "$$found" ]; then \
	        echo "Python 3.11 or newer is needed and none of these runs as one: $(candidates); install it, or name one with 'make PYTHON=/path/to/python'." >&2; exit 1; \
	    fi; \
	    echo "Making $(VENV) with $$found"; \
	    "$$found" -m venv "$(VENV)"; \
	fi
	$(bin)/python -m pip install --quiet -c constraints.txt setuptools
	$(bin)/python -m pip install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: setup
	$(bin)/python scripts/demo.py

test: setup
	$(bin)/python -m ruff check .
	$(bin)/python -m ruff format --check .
	$(bin)/python -m mypy
	$(bin)/python -m pytest -n logical --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

bench: setup
	$(bin)/python -m lab.bench $(BENCH_ARGS)

clean:
	rm -rf build dist eureka_lab.egg-info .pytest_cache .mypy_cache .ruff_cache
	find lab datasets callbacks scripts tests -type d -name __pycache__ -prune -exec rm -rf {} +
