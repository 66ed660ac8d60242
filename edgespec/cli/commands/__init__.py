"""The commands: a module each, whose `run` returns the exit code, and what they print."""
