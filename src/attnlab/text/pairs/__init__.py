"""Pairs of sentences that translate each other: read, kept on disk, and found out whether they do."""
