"""Reads the files of ONNX models without onnxruntime."""
