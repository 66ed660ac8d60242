"""What is recorded of where time and memory go, and the file that keeps it."""
