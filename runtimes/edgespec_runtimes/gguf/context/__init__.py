"""A context of llama.cpp: its cells, the texts and sequences in them, the rows of a batch."""
