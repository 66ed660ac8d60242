"""Fetches models by name from a Hugging Face hub, into the cache that its tools share."""
