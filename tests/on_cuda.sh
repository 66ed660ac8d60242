#!/usr/bin/env bash
# On a machine with a CUDA device: builds llama.cpp for it, runs the tests that need it, and measures,
# all within ten minutes. A step that fails is in the report, and the next one follows. What a build
# folder and .venv already hold is not made again, so that a second call has time for the rest.
# Usage: tests/on_cuda.sh [REPORT]
set -uo pipefail
report=$(realpath -m "${1:-$(dirname "$0")/../build/cuda-report.txt}")
cd "$(dirname "$0")/.." || exit 1
big=build/big.gguf
ends_s=$((SECONDS + 580))
export LLAMA_CPP_LIB_PATH=$PWD/build/cuda/bin

step() { # TITLE SECONDS COMMAND...
	local title=$1 limit_s=$2 left_s=$((ends_s - SECONDS)) began_s=$SECONDS
	shift 2
	printf '\n== %s: %s\n' "$title" "$*"
	if ((left_s <= 0)); then
		echo "-- left out: the ten minutes are over"
		return
	fi
	timeout --kill-after=5 $((limit_s < left_s ? limit_s : left_s)) "$@" 2>&1 | tail -n 40
	printf '\n-- exit code %s after %s s\n' "${PIPESTATUS[0]}" $((SECONDS - began_s))
}

on_gpu() { # LAYERS LAYERS-OF-THE-DRAFT
	step "1 GiB, -ngl $1 -ngld $2" 60 .venv/bin/edgespec generate -m $big -md models/edgespec-draft-q8_0.gguf \
		--memory-budget 1500MiB -ngl "$1" -ngld "$2" -c 1024 -n 96 -p 'def gcd(a, b):'
}

mkdir -p build "$(dirname "$report")"
{
	step "machine" 20 nvidia-smi
	step "tests' environment" 580 make .venv/testable  # pip begins again with what was not finished
	step "build" 580 make cuda CUDA_ARCHITECTURES=native WORKERS="$(nproc)"
	step "what is found" 60 .venv/bin/edgespec doctor
	step "GGUF: contracts, texts, budgets" 180 .venv/bin/python -m pytest -q -n "$(nproc)" --dist load \
		tests/gguf_runtime/test_{gguf_on_gpu,gguf_gpu,gguf_offloading}.py tests/test_end_to_end.py
	test -e $big || step "a large target" 60 .venv/bin/edgespec models enlarge embedded $big --size 1GiB
	on_gpu 0 0
	on_gpu 99 99
	on_gpu 12 99
	on_gpu 0 99
	on_gpu 99 0
	if .venv/bin/edgespec doctor | grep -q 'onnxruntime: .*(CUDA)'; then
		echo "-- onnxruntime finds CUDA's libraries"
	else
		step "CUDA for ONNX" 120 .venv/bin/python -m pip install -q 'onnxruntime-gpu[cuda,cudnn]'
	fi
	step "ONNX: what is skipped elsewhere" 120 .venv/bin/python -m pytest -q -n "$(nproc)" --dist load \
		tests/onnx_runtime/test_onnx_{offloading,providers}.py
} | tee "$report"
