"""Weights of a running decoder: pinned, streamed, looked up or on a device."""
