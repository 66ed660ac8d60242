"""Reads GGUF files without llama.cpp."""
