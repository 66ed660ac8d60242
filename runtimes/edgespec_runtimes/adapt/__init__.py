"""Trains drafts on texts of their targets. Needs PyTorch, which nothing else here imports."""
