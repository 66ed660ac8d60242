# Every target sets up .venv by itself. Building llama-cpp-python needs a C++ compiler (on Debian:
# apt install g++) and takes about four minutes once; pip fetches cmake and keeps the built wheel.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
TESTABLE := $(VENV)/testable
DOCUMENTABLE := $(VENV)/documentable

# Built by GCC, llama.cpp's AMX code ends the process at its first product of several rows. Only x86-64
# has it, and only compilers that know AMX can leave it out.
NO_AMX := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
known_by = echo 'int x;' | $(1) -Werror $(NO_AMX) -x $(2) -c -o /dev/null - 2>/dev/null
BUILD_FLAGS = $(shell uname -m | grep -qE '^(x86_64|amd64)$$' \
	&& $(call known_by,$${CC:-cc},c) && $(call known_by,$${CXX:-c++},c++) && echo '$(NO_AMX)')
# Other machines lend their memory through RPC; CMAKE_ARGS of the environment may add to it.
PIP_INSTALL = CMAKE_ARGS="-DGGML_RPC=ON $$CMAKE_ARGS" CFLAGS="$$CFLAGS $(BUILD_FLAGS)" CXXFLAGS="$$CXXFLAGS $(BUILD_FLAGS)" \
	$(BIN)/python -m pip install

# Why this build of llama.cpp is not the one that is wanted; nothing if it is.
define WRONG_BUILD
import sys, llama_cpp
if sys.argv[1] and b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info():
    print("with AMX, which fails with GCC")
elif not llama_cpp.llama_supports_rpc():
    print("without RPC")
endef
export WRONG_BUILD

.PHONY: demo test check docs clean

demo: $(READY)
	$(BIN)/edgespec demo

# A file's tests stay together: they share what they open. A worker that dies ends the run, which would
# otherwise wait for ever for the files that it had done (pytest-xdist 3.8, issue 1378).
test: $(TESTABLE)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart 0 -m "not slow"

check: $(TESTABLE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/check_wheel.py
	$(MAKE) docs
	$(MAKE) test
	$(BIN)/python -m pytest -m slow

# The site, in build/site; a dead link or a page that is missing fails.
docs: $(DOCUMENTABLE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed: $(PYTHON) was not found" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=python3.12 names another" >&2; exit 1; }
	@command -v c++ >/dev/null || { echo "a C++ compiler is needed to build llama.cpp: apt install g++, or xcode-select --install" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(PIP_INSTALL) -e ".[gguf,dev]"
	@# pip's cache does not look at flags: it may hold a wheel that was built without them
	@wrong="$$($(BIN)/python -c "$$WRONG_BUILD" "$(BUILD_FLAGS)")"; if test -n "$$wrong"; then \
		echo "this llama.cpp was built $$wrong: building it again"; \
		$(BIN)/python -m pip cache remove llama_cpp_python; \
		$(PIP_INSTALL) --force-reinstall --no-deps "$$($(BIN)/python -m pip freeze | grep -i '^llama.cpp.python')"; \
	fi
	@touch $@

# The ONNX runtime is a download of 250 MB, which the demo does without.
$(TESTABLE): $(READY)
	$(PIP_INSTALL) -e ".[gguf,onnx,chat,completion,grammar,hub,serve,dev]"
	@touch $@

$(DOCUMENTABLE): $(READY)
	$(BIN)/python -m pip install -e ".[docs]"
	@touch $@
