# Two commands a bare machine understands: `make pretrain` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: pretrain test test-slow lint docs stats clean

pretrain: .venv/.ready
	$(BIN)/python Pretraining.py

test: .venv/.ready-dev
	$(BIN)/python -m pytest -q -n auto -m "not slow"

test-slow: .venv/.ready-dev
	$(BIN)/python -m pytest -q -n auto -m slow

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.ready-docs
	$(BIN)/mkdocs build --strict --quiet

stats: .venv/.ready-dev
	$(BIN)/python -m tests.budgets

clean:
	rm -rf .venv

.venv/.ready: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.txt
	touch $@

.venv/.ready-dev: .venv/.ready pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

.venv/.ready-docs: .venv/.ready-dev
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@
