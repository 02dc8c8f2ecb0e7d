"""Looking inside a model: what it makes of an input, where its heads look, what they are worth. No HTTP in here."""
