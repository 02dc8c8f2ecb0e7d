"""Run folders that lie in an object store: opened there, copied here, sent back."""
