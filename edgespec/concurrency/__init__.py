"""Threads and processes: shared ownership, fair locks, a worker thread, and exit codes."""
