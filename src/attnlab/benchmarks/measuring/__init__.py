"""How things are measured: in turn, in passes, with growing sizes."""
