"""The parts of attention and of a block, one file per axis of variation."""
