"""Saves the KV caches of a session's models in a file, and loads them again."""
