"""Memory needs of a decoder, and the places of its bytes."""
