"""Conformance suites: what every part must satisfy, for our tests and for parts of your own.

    from bayrace.testing import check_cutoff, check_derivatives, check_symmetries, random_frame
    frame = random_frame((1, 6, 8), 9, seed=0)
    check_symmetries(model, model.init(0, dtype=torch.float64), frame)

    from bayrace.testing import check_posterior, check_predictions, check_recalibration
    check_posterior(posterior, model)
    check_predictions(potential, random_frame((1, 6, 8), 9, seed=0, cell=5 * np.eye(3)))
    check_recalibration(functools.partial(fit_calibration, method="scale"))

    from bayrace.testing import check_acquisition, check_oracle
    check_acquisition(Variance(), potential, frames)
    check_oracle(Gfn2(), frame)

Every check raises AssertionError with the number that failed. Use float64 parameters.
"""

from bayrace.testing.acquisitions import check_acquisition
from bayrace.testing.examples import EXAMPLES
from bayrace.testing.models import check_cutoff, check_derivatives, check_symmetries
from bayrace.testing.oracles import check_oracle
from bayrace.testing.posteriors import check_posterior
from bayrace.testing.predictions import check_predictions
from bayrace.testing.recalibrations import check_recalibration
from bayrace.testing.structures import graph_of, random_frame, small_spec

__all__ = [
    "EXAMPLES",
    "check_acquisition",
    "check_cutoff",
    "check_derivatives",
    "check_oracle",
    "check_posterior",
    "check_predictions",
    "check_recalibration",
    "check_symmetries",
    "graph_of",
    "random_frame",
    "small_spec",
]
