"""What this machine and these models allow: `edgespec doctor`. Prints nothing."""
