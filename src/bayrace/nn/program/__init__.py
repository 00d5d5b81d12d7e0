"""Networks as programs: all steps of an evaluation, and of its derivatives, in one compiled call."""
