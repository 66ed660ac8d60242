"""The only code that touches onnxruntime."""
