"""Trained runs put to use: sentences translated, texts continued."""
