"""All that touches onnxruntime."""
