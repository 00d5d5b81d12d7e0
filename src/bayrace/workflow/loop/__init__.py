"""Active learning that closes the loop: explore, select, label, train, evaluate, and again."""
