# Every target sets up .venv by itself. Building llama-cpp-python needs a C++ compiler (on Debian:
# apt install g++) and takes about four minutes once; pip fetches cmake and keeps the built wheel.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
TESTABLE := $(VENV)/testable

.PHONY: demo test check bench-check clean

demo: $(READY)
	$(BIN)/edgespec demo

test: $(TESTABLE)
	$(BIN)/python -m pytest -m "not slow"

check: $(TESTABLE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/check_wheel.py
	$(MAKE) test
	$(BIN)/python -m pytest -m slow

# Minutes, and as root, who may limit memory and reads: sudo make bench-check
bench-check: $(READY)
	$(BIN)/edgespec bench --compare tests/bench_expected.toml

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed: $(PYTHON) was not found" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=python3.12 names another" >&2; exit 1; }
	@command -v c++ >/dev/null || { echo "a C++ compiler is needed to build llama.cpp: apt install g++, or xcode-select --install" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -e ".[gguf,dev]"
	@touch $@

# The ONNX runtime is a download of 250 MB, which the demo does without.
$(TESTABLE): $(READY)
	$(BIN)/python -m pip install -e ".[gguf,onnx,chat,hub,dev]"
	@touch $@
