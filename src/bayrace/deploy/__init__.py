"""Thin wrappers that let simulation codes use a Potential."""
