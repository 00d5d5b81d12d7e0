"""One posterior of every kind around any weights, made in no time: for tests of what uses them.

They were not fitted to anything, so their uncertainties mean nothing; their laws are the real ones.
"""

from __future__ import annotations

from bayrace.posterior import POSTERIORS
from bayrace.posterior.method import Example

EXAMPLES: dict[str, Example] = {
    label: example
    for method in POSTERIORS.all().values()
    for label, example in method.examples().items()
}
"""By a label that begins with the name; each makes a posterior from a network and its weights."""
