"""Benchmarks: attnlab and its alternatives in turn, within one run.

``catalog.py`` names them. Each ends in results that print themselves and turn into JSON; ``turns.py`` has the one
that most of them use, and the measuring in turn.
"""
