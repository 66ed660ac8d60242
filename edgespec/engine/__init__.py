"""The speculative loop and its rules; `loop` is where to begin."""
