"""Threads and processes: closing what they share, a worker thread, and their ends in words."""
