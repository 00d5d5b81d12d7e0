"""The values that flow through bayrace, and what its parts promise each other."""
