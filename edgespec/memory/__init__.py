"""Memory of the machine and its division: the plan of a budget."""
