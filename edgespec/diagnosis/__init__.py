"""What this machine has, and what a model would do on one. Prints nothing."""
