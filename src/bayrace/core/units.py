"""Conversions to eV and Å, used only where files are read or written (CODATA 2018)."""

KCAL_PER_MOL = 0.0433641153087705  # eV; 4184 J / (N_A · e)
HARTREE = 27.211386245988  # eV
BOHR = 0.529177210903  # Å
GPA = 0.006241509074460763  # eV/Å³; 1e9 Pa
