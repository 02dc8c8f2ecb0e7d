"""Several runs of one architecture as one program, equal to one after another."""
