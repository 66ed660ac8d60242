"""What a decoder needs, and where its bytes go."""
