"""RACE, our own network."""
