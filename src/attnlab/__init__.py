"""A laboratory for attention: build, train, compare and look inside attention and Transformer variants."""
