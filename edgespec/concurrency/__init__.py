"""Threads and processes: who owns what they work on, who works, and how they ended."""
