"""Predictions of graphs and frames from weight samples or closed forms."""
