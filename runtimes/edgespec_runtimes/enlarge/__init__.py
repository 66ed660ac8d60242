"""Writes bigger models that compute the same function; runs none."""
