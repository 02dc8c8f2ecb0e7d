"""The task `char-lm`: its text, its floors, its metrics."""
