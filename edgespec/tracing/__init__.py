"""Records of time and memory, and the file that keeps them."""
