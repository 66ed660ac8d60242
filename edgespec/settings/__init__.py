"""Settings: validated values, the options of runtimes, sizes, and their names for users."""
