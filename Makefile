# make setup  the virtual environment .venv, with pinned versions
# make demo   the main job on real images: one data set streamed from both ends
# make test   lint, types and tests
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready
RUN := $(VENV)/bin/python

.PHONY: setup demo test lint types bench bench-peers clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "making $(VENV): about a minute, most of it for torch"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ddlp needs Python 3.11 or later: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: setup
	$(RUN) -m ddlp demo

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: setup
	$(RUN) -m mypy

test: lint types
	$(RUN) -m pytest

bench: setup
	$(RUN) benchmarks/overhead.py
	$(RUN) benchmarks/overlap.py

bench-peers: setup
	-$(RUN) benchmarks/peers/setup.py  # what cannot be made is left out, and named
	$(RUN) benchmarks/peers/run.py --report docs/benchmarks.md

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
