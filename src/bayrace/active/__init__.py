"""Active learning: choose what to label, and learn from it."""
