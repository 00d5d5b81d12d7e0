"""Gaussians over weights and what they need of a model: Laplace and LLPR share it."""
