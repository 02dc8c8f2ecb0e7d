"""Commands that put trained models to work, or look at what they learned."""
