"""Everything that calls llama.cpp."""
