"""Energies as pure functions of parameters and graphs, and their derivatives."""
