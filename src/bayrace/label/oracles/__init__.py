"""Kinds of oracles, one a file; `bayrace.config.oracle` makes them from their names."""
