"""What a class says in plain words: the order of its axes, whether it is causal, what True means in its masks.

Words declare what is meant; what a module does is measured.
"""
