# `make demo` and `make test` do everything from a bare Python 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check format install clean

demo: install
	$(BIN)/bertvision run

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(MAKE) test

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

install: $(VENV)/.installed

# torch first and alone, so that no other package's range can pull a CUDA build. Compiling every file of every package takes
# longer than installing them: only what is imported is compiled, when it is first imported, which the last line does.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bertvision needs Python 3.11 or newer: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[embedded,data,track]' --group dev
	$(BIN)/bertvision heads --json > /dev/null
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache
