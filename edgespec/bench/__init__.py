"""Compares decoding modes on the same models, prompts and limits, and reports the results.

It imports no model library: each run has a process of its own.
"""
