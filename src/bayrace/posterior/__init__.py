"""Distributions over weights, one algorithm per file."""
