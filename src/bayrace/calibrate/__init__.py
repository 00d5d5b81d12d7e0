"""Recalibration: make predicted uncertainties agree with the errors seen on validation data."""
