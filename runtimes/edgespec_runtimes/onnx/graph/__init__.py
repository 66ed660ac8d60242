"""A decoder's graph: understood, rewritten and cut."""
