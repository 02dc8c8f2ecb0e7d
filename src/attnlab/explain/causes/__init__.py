"""What may have made a number what it is, and what a set-up becomes without it."""
