"""Diagnosis of this machine and of models on it, for `edgespec doctor`. Prints nothing."""
