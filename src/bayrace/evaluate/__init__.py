"""Metrics, and the evaluation of potentials on labelled frames."""
