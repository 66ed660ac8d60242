"""Examines this machine, and predicts models that are not at hand. Prints nothing."""
