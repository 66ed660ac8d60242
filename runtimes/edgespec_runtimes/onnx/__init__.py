"""ONNX models on onnxruntime."""

from edgespec_runtimes.onnx.runtime import OnnxRuntime

runtime = OnnxRuntime()
