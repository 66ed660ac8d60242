"""Where weights are while a decoder runs."""
