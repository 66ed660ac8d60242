"""What authors of runtimes test with: a fake model and the contracts."""
