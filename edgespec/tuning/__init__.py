"""Finds the fastest settings for a device, a pair and a memory budget: `edgespec tune`."""
