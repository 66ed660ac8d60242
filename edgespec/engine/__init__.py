"""The speculative loop and its rules; `engine` is where to begin."""
