"""Training: optimisers, schedules, checkpoints and the loop that uses them."""
