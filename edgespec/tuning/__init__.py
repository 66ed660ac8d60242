"""Finds the best settings for a device, a pair and a memory budget: `edgespec tune`."""
