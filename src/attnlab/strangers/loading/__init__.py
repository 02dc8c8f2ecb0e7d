"""From what a person names to a patient: a file imported, arguments guessed, a module built."""
