"""How the readable path is computed fast: equal results, other orders of the same work."""
