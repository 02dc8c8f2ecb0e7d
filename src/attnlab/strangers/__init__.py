"""A person's own module: load it, read it, find out how to call it, call it."""
