# Two commands are enough: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
RAY := .venv-ray
PIP_OPTIONS := --quiet --disable-pip-version-check

.PHONY: help demo test test-slow test-oldest test-clusters lint format figures clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/examples.stamp  ## Train digits on four workers, global batch up to 32,768.
	$(VENV)/bin/fastnet demo

test: $(VENV)/dev.stamp  ## Run all tests but a few slow ones.
	$(VENV)/bin/python -m pytest -m "not slow"

test-slow: $(VENV)/dev.stamp  ## Run those: twenty kills, every fix switched off.
	$(VENV)/bin/python -m pytest -m "slow"

test-oldest: $(OLDEST)/dev.stamp  ## Run a subset on the oldest supported versions.
	$(OLDEST)/bin/python -m pytest -m "smoke"

test-clusters: $(RAY)/dev.stamp  ## Run those with real schedulers: Slurm, Ray.
	$(RAY)/bin/python -m pytest -m "clusters"

lint: $(VENV)/dev.stamp  ## Check style and types.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/dev.stamp  ## Rewrite the code in the project's style.
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

figures: $(VENV)/dev.stamp  ## Redraw the plots of docs/ from the result files.
	$(VENV)/bin/python benchmarks/figures.py

clean:  ## Remove environments, builds and caches.
	rm -rf $(VENV) $(OLDEST) $(RAY) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/%.stamp: pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(PIP_OPTIONS) -e ".[$*]"
	touch $@

$(RAY)/dev.stamp: pyproject.toml
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install $(PIP_OPTIONS) -e ".[dev,ray]"
	touch $@

$(OLDEST)/dev.stamp: pyproject.toml
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install $(PIP_OPTIONS) -e ".[dev]" "tensorflow==2.18.*" "keras==3.10.*"
	touch $@
