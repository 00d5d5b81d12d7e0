"""Figures of the report, one file per question."""
