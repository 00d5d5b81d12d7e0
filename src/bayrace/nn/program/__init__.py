"""Networks as programs: an evaluation, and its derivatives, in one compiled call each."""
