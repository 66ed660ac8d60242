"""All code that calls onnxruntime."""
