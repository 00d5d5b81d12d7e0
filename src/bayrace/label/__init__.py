"""Labels from oracles."""
