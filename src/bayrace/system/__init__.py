"""Cores, processes and databases of the machine."""
