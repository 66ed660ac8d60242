"""Weights that are read from storage while a model computes."""
