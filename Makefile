# `make pretrain` and `make test` need only Python: they create .venv with the pinned packages first.
PYTHON ?= python3
BIN := .venv/bin
# Where this is set, each process compiles torch and transformers again: 10 seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: pretrain test test-slow test-faults lint docs page requirements stats release clean

pretrain: .venv/.ready
	$(BIN)/python Pretraining.py

test: .venv/.ready-dev
	$(BIN)/python -m pytest -q -n auto -m "not slow and not faults"

test-slow: .venv/.ready-dev
	$(BIN)/python -m pytest -q -n auto -m slow

test-faults: .venv/.ready-dev
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m faults

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

docs: .venv/.ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# A static page that scores text in the browser, from the registries of Python and npm. MODEL is a run or a model folder.
MODEL ?= data/models/english-h256-l4
page: .venv/.ready-dev
	$(BIN)/python examples/page/build.py --model $(MODEL) --output_dir page

# Pins every dependency of pyproject.toml: keeps existing pins, new ones get the newest version. UPGRADE=-U updates all.
# Then locks what those depend on, with hashes, and lists the licences of all (on Linux, where torch has the most).
requirements: .venv/.ready-dev
	$(BIN)/uv pip compile pyproject.toml --quiet --no-deps --no-strip-extras --no-annotate --python-version 3.11 \
		--custom-compile-command 'make requirements' $(UPGRADE) --output-file requirements.txt
	$(BIN)/uv pip compile requirements.txt --quiet --universal --generate-hashes --no-annotate --python-version 3.11 \
		--custom-compile-command 'make requirements' $(UPGRADE) --output-file requirements.lock
	$(BIN)/python docs/licenses.py

stats: .venv/.ready-dev
	$(BIN)/python -m tests.budgets

# Source and wheel in dist/, which is made of the source, and the wheel tried in an empty environment of each Python.
PYTHONS ?= python3.11 python3.13
release: .venv/.ready-dev
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	for python in $(PYTHONS); do \
		$$python -m venv --clear dist/env && \
		dist/env/bin/python -m pip install --quiet dist/*.whl && \
		dist/env/bin/electra-albert pretrain --max_steps 3 --output_dir dist/run --resume never && \
		dist/env/bin/electra-albert demo --gen dist/run && rm -rf dist/env dist/run || exit 1; \
	done

clean:
	rm -rf .venv

# --no-compile: a module is compiled when it is first imported, which most never are. uv takes seconds where pip takes a minute;
# pip also finds a mirror that only pip is configured for.
EXTRAS := --editable '.[dev,docs]'

.venv/.ready: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -r requirements.txt
	touch $@

.venv/.ready-dev: .venv/.ready pyproject.toml
	$(BIN)/python -m pip install --quiet uv==0.13.9
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(EXTRAS) || $(BIN)/python -m pip install --quiet $(EXTRAS)
	touch $@
