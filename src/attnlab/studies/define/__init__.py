"""A study as a person writes it: read, checked, its rules fixed."""
