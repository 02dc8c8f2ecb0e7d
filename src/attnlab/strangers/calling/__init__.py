"""How a patient is called: read from its signature and its words, and found out by calling it."""
