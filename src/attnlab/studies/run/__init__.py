"""Cells of a study, run."""
