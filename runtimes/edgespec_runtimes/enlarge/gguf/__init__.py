"""Enlarges GGUF models."""
