"""From an export to a decoder that is ready to load."""
