"""Which structures to label next."""
