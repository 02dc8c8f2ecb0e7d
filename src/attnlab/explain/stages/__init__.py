"""The stages of explaining: each takes what is known and measured before it, and gives more, or what to go on with."""
