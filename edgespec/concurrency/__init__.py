"""Threads and processes: shared ownership, a worker thread, programs, and exit codes."""
