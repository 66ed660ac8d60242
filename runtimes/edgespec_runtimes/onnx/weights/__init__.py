"""Weights of a decoder while it runs: pinned, streamed, looked up or on a device."""
