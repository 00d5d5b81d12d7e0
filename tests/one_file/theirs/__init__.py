"""Methods of somebody else."""
