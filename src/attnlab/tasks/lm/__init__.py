"""The task `lm`: any text in any tokens, documents with ends."""
