"""Reads GGUF files; knows nothing of llama.cpp."""
