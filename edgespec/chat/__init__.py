"""Conversations: messages, the model's chat template, and reasoning separated from answers."""
