"""Grammars that are counted: symbols, counts, charts over many trees, and trees chosen among the best."""
