"""Losses: squared errors and Gaussian likelihoods of energies, forces and stresses."""
