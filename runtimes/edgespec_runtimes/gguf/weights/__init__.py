"""Weights of a GGUF model: what they need, where they lie, how they are paged."""
