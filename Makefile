# Every target sets up .venv by itself. A wheel of llama-cpp-python for this machine in WHEELS is taken;
# `make wheels` makes it. Without one llama-cpp-python is built, which needs a C++ compiler (on Debian:
# apt install g++) and takes about four minutes once; pip fetches cmake and keeps the built wheel.

PYTHON ?= python3
WORKERS ?= 2
WHEELS ?= dist
VENV := .venv
BIN := $(VENV)/bin
CREATED := $(VENV)/created
READY := $(VENV)/ready
TESTABLE := $(VENV)/testable
DOCUMENTABLE := $(VENV)/documentable

# A module is compiled when it is first imported, not by every process.
unexport PYTHONDONTWRITEBYTECODE

# Built by GCC, llama.cpp's AMX code ends the process at its first product of several rows. Only x86-64
# has it, and only compilers that know AMX can leave it out.
NO_AMX := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
known_by = echo 'int x;' | $(1) -Werror $(NO_AMX) -x $(2) -c -o /dev/null - 2>/dev/null
BUILD_FLAGS = $(shell uname -m | grep -qE '^(x86_64|amd64)$$' \
	&& $(call known_by,$${CC:-cc},c) && $(call known_by,$${CXX:-c++},c++) && echo '$(NO_AMX)')
# Other machines lend their memory through RPC; CMAKE_ARGS of the environment may add to it.
PIP_INSTALL = CMAKE_ARGS="-DGGML_RPC=ON $$CMAKE_ARGS" CFLAGS="$$CFLAGS $(BUILD_FLAGS)" CXXFLAGS="$$CXXFLAGS $(BUILD_FLAGS)" \
	$(BIN)/python -m pip install$(if $(LLAMA_CPP_WHEEL), --find-links $(WHEELS))
LLAMA_CPP_VERSION = $(shell sed -n 's/^gguf = .*"llama-cpp-python==\([^"]*\)".*/\1/p' pyproject.toml)
LLAMA_CPP_WHEEL = $(wildcard $(WHEELS)/llama_cpp_python-$(LLAMA_CPP_VERSION)-*_$(shell uname -m).whl)

# Why this build of llama.cpp is not the one that is wanted; nothing if it is.
define WRONG_BUILD
import sys, llama_cpp
if sys.argv[1] and b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info():
    print("with AMX, which fails with GCC")
elif not llama_cpp.llama_supports_rpc():
    print("without RPC")
endef
export WRONG_BUILD

.PHONY: demo test test-vulkan cuda vulkan check sentences docs test-processors test-aarch64 wheels release clean

demo: $(READY)
	$(BIN)/edgespec demo

# A file's tests stay together: they share what they open; tests/conftest.py puts files in order. A
# worker that dies ends the run, which would otherwise wait for ever for the files that it had done
# (pytest-xdist 3.8, issue 1378).
TEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
test: $(TESTABLE)
	$(TEST) -m "not slow"

# The GGUF tests on a Vulkan device: without a GPU on Mesa's lavapipe, a driver that computes on the CPU.
# ggml takes such a device only where it is asked for by number; fused kernels over two rows end Mesa 22.3.
test-vulkan: vulkan $(TESTABLE)
	LLAMA_CPP_LIB_PATH=$(CURDIR)/build/vulkan/bin GGML_VK_VISIBLE_DEVICES=$${GGML_VK_VISIBLE_DEVICES-0} \
		GGML_VK_DISABLE_FUSION=1 $(BIN)/python -m pytest $(addprefix tests/gguf_runtime/test_gguf_,gpu.py model.py offloading.py on_gpu.py)

# llama.cpp for a GPU, in a folder that LLAMA_CPP_LIB_PATH names; with a CUDA device tests/on_cuda.sh does the rest.
cuda vulkan: %: build/%/bin/libllama.so

check: $(TESTABLE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	printf '%s\n' linux darwin win32 | xargs -P $(WORKERS) -I{} $(BIN)/mypy --platform {} --cache-dir .mypy_cache/{}
	$(BIN)/python tests/check_wheel.py
	$(MAKE) docs
	$(TEST)

# Writes the sentences of errors that tests expect anew; the diff shows which ones changed.
sentences: $(TESTABLE)
	$(BIN)/python tests/sentences.py

# The site, in build/site; a dead link or a page that is missing fails.
docs: $(DOCUMENTABLE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# The tests of what is claimed to the last bit, on every level of instructions that this processor has: five
# minutes a level on two idle cores, by its processor time; a Zen 4 has seven of the wheel's eight.
test-processors: $(TESTABLE)
	test -n "$(LLAMA_CPP_WHEEL)" || $(MAKE) wheels
	$(BIN)/python tests/on_every_processor.py $(WHEELS)/llama_cpp_python-$(LLAMA_CPP_VERSION)-*_$$(uname -m).whl

# The demo and tests on aarch64 under qemu-user, some ten times slower than here. As root.
test-aarch64: | $(CREATED)
	@command -v aarch64-linux-gnu-g++ >/dev/null || { echo "apt install g++-aarch64-linux-gnu qemu-user-static debootstrap" >&2; exit 1; }
	test -n "$(wildcard $(WHEELS)/llama_cpp_python-$(LLAMA_CPP_VERSION)-*_aarch64.whl)" || $(MAKE) wheels TOOLCHAIN=.ci/aarch64.cmake
	tests/on_aarch64.sh $(WHEELS)

# Wheels for machines without a compiler: llama-cpp-python for all processors of an architecture, this
# one's or that of a CMake toolchain file (TOOLCHAIN=...), and edgespec. Takes ten minutes of two cores.
wheels: | $(CREATED)
	$(BIN)/python -m pip install -q cmake ninja wheel hatchling
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python .ci/build_wheel.py --version $(LLAMA_CPP_VERSION) --out $(WHEELS) \
		$(if $(TOOLCHAIN),--toolchain $(TOOLCHAIN))
	$(BIN)/python -m hatchling build -t wheel -d $(WHEELS)

# What a release holds. The same commit, compiler and folder give the same bytes.
release: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)
release: wheels
	awk '/^## /{n++} n == 1' CHANGELOG.md > $(WHEELS)/CHANGES.md
	cp LICENSE Containerfile examples/edgespec-server.service $(WHEELS)
	cd $(WHEELS) && sha256sum -- *.whl CHANGES.md Containerfile LICENSE edgespec-server.service > SHA256SUMS

# Only ggml is built for a GPU; the rest of llama.cpp is the one of .venv.
CUDA_ARCHITECTURES ?= 87-real;90-real
build/vulkan/bin/libllama.so: GPU_FLAGS = -DGGML_VULKAN=ON
build/vulkan/bin/libllama.so: NEEDED = glslc --version && test -e /usr/include/vulkan/vulkan.hpp && test -d /usr/include/spirv
build/vulkan/bin/libllama.so: MISSING = apt install cmake glslc libvulkan-dev mesa-vulkan-drivers spirv-headers
build/cuda/bin/libllama.so: GPU_FLAGS = -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)"
build/cuda/bin/libllama.so: NEEDED = nvcc --version
build/cuda/bin/libllama.so: MISSING = apt install cmake, and CUDA 12 or later with cuBLAS, nvcc in the PATH

build/%/bin/libllama.so: build/llama-cpp-python
	@{ cmake --version && $(NEEDED); } >/dev/null 2>&1 || { echo "tools are missing: $(MISSING)" >&2; exit 1; }
	CFLAGS="$$CFLAGS $(BUILD_FLAGS)" CXXFLAGS="$$CXXFLAGS $(BUILD_FLAGS)" \
		cmake -S $</vendor/llama.cpp -B build/$* -DCMAKE_BUILD_TYPE=Release -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON \
		$(foreach part,COMMON EXAMPLES SERVER TESTS TOOLS,-DLLAMA_BUILD_$(part)=OFF) \
		-DGGML_RPC=ON $(GPU_FLAGS) $$CMAKE_ARGS
	cmake --build build/$* --target ggml --parallel $(WORKERS)
	@# llama_cpp is not imported: where LLAMA_CPP_LIB_PATH names this folder, it would look for itself here
	cd "$$($(BIN)/python -c 'from importlib.util import find_spec as find; print(*find("llama_cpp").submodule_search_locations)')/lib" \
		&& cp libllama.so* libmtmd.so* $(CURDIR)/build/$*/bin

# Its sources, made to compile with the Vulkan headers of Debian 12, too.
build/llama-cpp-python: $(READY) tests/vulkan_headers.patch
	rm -rf $@ $@.part
	$(BIN)/python -m pip download --no-deps --no-binary llama-cpp-python -d $@.part llama-cpp-python==$(LLAMA_CPP_VERSION)
	tar xzf $@.part/*.tar.gz -C $@.part --strip-components=1
	patch -d $@.part -p1 <tests/vulkan_headers.patch
	mv $@.part $@
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(CREATED):
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed: $(PYTHON) was not found" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed: make PYTHON=python3.12 names another" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	@touch $@

$(READY): pyproject.toml | $(CREATED)
	@test -n "$(LLAMA_CPP_WHEEL)" || command -v c++ >/dev/null || { echo "a C++ compiler is needed to build llama.cpp: apt install g++, or xcode-select --install; or WHEELS=FOLDER with a wheel of it" >&2; exit 1; }
	$(PIP_INSTALL) -e ".[gguf]"
	@# pip's cache does not look at flags: it may hold a wheel that was built without them
	@wrong="$$(env -u LLAMA_CPP_LIB_PATH $(BIN)/python -c "$$WRONG_BUILD" "$(BUILD_FLAGS)")"; if test -n "$$wrong"; then \
		echo "this llama.cpp was built $$wrong: building it again"; \
		$(BIN)/python -m pip cache remove llama_cpp_python; \
		$(PIP_INSTALL) --force-reinstall --no-deps llama-cpp-python==$(LLAMA_CPP_VERSION); \
	fi
	@touch $@

# The demo does without tools, clients and the ONNX runtime, a download of 250 MB. Most of their modules are never
# imported; Python compiles those that are.
$(TESTABLE): $(READY)
	$(PIP_INSTALL) --no-compile -e ".[gguf,onnx,chat,grammar,hub,serve,dev]"
	@touch $@

$(DOCUMENTABLE): $(READY)
	$(BIN)/python -m pip install -e ".[dev,docs]"
	@touch $@
