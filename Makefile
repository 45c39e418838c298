# Two commands for a fresh machine: `make demo` and `make test`. Each makes the environment that it needs first, once.
#   PYTHON=...       the Python (3.11 or newer) to build the environment with; found by itself otherwise
#   VENV=...         where the environment lies (default .venv)
#   TORCH_INDEX=...  the package index that PyTorch comes from, such as that of its builds without CUDA
SHELL := /bin/sh
VENV ?= .venv
PYTHON ?=
TORCH_INDEX ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=

candidates := $(if $(strip $(PYTHON)),$(PYTHON),python3.13 python3.12 python3.11 python3 python)
python := $(VENV)/bin/python
pip := $(python) -m pip install --disable-pip-version-check -c constraints.txt
# What is installed so far: the lab with what it needs to run; on top, what it takes to develop it.
lab := $(VENV)/.lab
dev := $(VENV)/.dev

.PHONY: help setup demo test bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    a small transformer trained to its Eureka-moment (a few minutes)"
	@echo "make test    ruff, mypy, import-linter and the whole test suite"
	@echo "make bench   the speed and memory table (BENCH_ARGS='--quick' for a glance)"
	@echo "make setup   the environment of 'make test' alone"
	@echo "make clean   removes caches and build leftovers; runs, results and $(VENV) stay"
	@echo "Each makes its environment first, in $(VENV); delete that folder to make it anew."
	@echo "PYTHON=python3.12 chooses the Python, VENV=folder the place of the environment."
	@echo "TORCH_INDEX=<url of PyTorch's CPU index> takes PyTorch from there: without CUDA it is a tenth of the size."

setup: $(dev)

# The candidates are run, not only looked up: a name on the PATH may be a shim with nothing behind it.
$(lab): pyproject.toml constraints.txt
	@set -eu; \
	if ! "$(python)" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
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
	    echo "1/3  Making $(VENV) with $$found"; \
	    "$$found" -m venv "$(VENV)"; \
	fi
ifeq ($(strip $(TORCH_INDEX)),)
	@quiet=--quiet; "$(python)" -m pip show --quiet torch 2>/dev/null || { quiet=; \
	    echo "2/3  Installing PyTorch. On Linux it comes with CUDA: 5 GB on disk, several minutes."; \
	    echo "     Without a GPU a tenth of that is enough: make TORCH_INDEX=<url of PyTorch's CPU index> demo"; }; \
	$(pip) $$quiet torch torchvision
else
	@echo "2/3  Installing PyTorch from $(TORCH_INDEX)"
	@$(pip) --no-deps --index-url "$(TORCH_INDEX)" torch torchvision
endif
	@echo "3/3  Installing the lab and its other packages: less than 1 GB on disk"
	@$(pip) --quiet setuptools
	@$(pip) --quiet --no-build-isolation -e .
	@touch $@

$(dev): $(lab)
	@echo "     Installing what the tests need: 0.7 GB on disk"
	@$(pip) --quiet --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(lab)
	$(python) scripts/demo.py

test: $(dev)
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(python) -m pytest -n logical --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

bench: $(lab)
	$(python) -m lab.bench $(BENCH_ARGS)

clean:
	rm -rf build dist eureka_lab.egg-info .pytest_cache .mypy_cache .ruff_cache
	find lab datasets callbacks hydra_plugins scripts tests -type d -name __pycache__ -prune -exec rm -rf {} +
