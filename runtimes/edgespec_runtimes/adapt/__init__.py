"""Trains drafts on texts of their targets. The only part that needs PyTorch."""
