"""Whole models built from the parts, and their rivals."""
