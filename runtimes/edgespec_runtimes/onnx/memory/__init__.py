"""Memory needs of a decoder."""
