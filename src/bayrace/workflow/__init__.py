"""Whole tasks: training, fitting a posterior, ensembles, tuning, active learning."""
