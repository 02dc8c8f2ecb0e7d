"""The tasks `classify` and `sequences`: a person's own arrays and tables."""
