"""Records spans of time, and writes them to a trace file."""
