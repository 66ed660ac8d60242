"""`-md self`: drafts made from their target, of coarse copies or the upper bits of its weights."""
