"""Threads and processes: shared ownership, a pool of bytes, a worker thread, and exit codes."""
