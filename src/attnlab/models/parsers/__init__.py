"""Models of whole trees, which need not be written token by token."""
