"""Records spans of time and counters of memory, and writes them to a trace file."""
