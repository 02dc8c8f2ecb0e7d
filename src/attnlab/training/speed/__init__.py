"""Which way of computing steps is used: number formats, compiling, memory."""
