"""Text: read, kept on disk, encoded, split, counted (n-grams, overlap of parts), with no model and no task in sight."""
