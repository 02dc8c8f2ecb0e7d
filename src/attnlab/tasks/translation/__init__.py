"""The task `translation`: its corpora, its data on disk, its scores."""
