"""Molecular dynamics that stop where a potential does not know."""
