"""Saves the state of a session's models in a file, and loads it again."""
