"""Reads ONNX models' files; knows nothing of onnxruntime."""
