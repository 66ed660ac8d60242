"""Memory needs of a decoder, and their placement on a GPU."""
