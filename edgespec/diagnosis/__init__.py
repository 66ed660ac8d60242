"""Limits of this machine and of models on it: `edgespec doctor`. Prints nothing."""
