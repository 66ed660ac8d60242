"""Enlarges ONNX exports."""
