"""The commands, one module each, whose `run` returns the exit code, and their reports."""
