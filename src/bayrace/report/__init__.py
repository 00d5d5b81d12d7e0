"""What a potential is worth, as numbers, figures and pages."""
