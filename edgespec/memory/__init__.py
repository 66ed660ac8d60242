"""What memory there is, and who gets it."""
