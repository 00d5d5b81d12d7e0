"""Whether frames had a part in making a potential, by the hashes that its file keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bayrace.data.frame import DataError, Frame
from bayrace.data.split import frame_hashes

PURPOSES = {
    "train": "training",
    "valid": "validation",
    "test": "testing",
    "calibration": "calibration",
}
"""What the frames of each part are for."""


def overlap(seen: Mapping[str, NDArray[np.int64]], frames: Sequence[Frame]) -> dict[str, int]:
    """How many of these frames, geometry and labels, each part of `seen` holds; zeros left out.

    Parts come in the order of `PURPOSES`.
    """
    hashes = frame_hashes(frames)
    counts = {part: int(np.isin(hashes, seen[part]).sum()) for part in PURPOSES if part in seen}
    return {part: count for part, count in counts.items() if count}


def refuse_seen(seen: Mapping[str, NDArray[np.int64]], frames: Sequence[Frame]) -> None:
    """Raise if any frame was trained on, or is kept for the test.

    Errors on training frames are too small, and a test that was fitted to is no test.
    """
    found = overlap(seen, frames)
    for part in ("train", "test"):
        if part in found:
            raise DataError(
                f"{found[part]} of {len(frames)} frames were used for {PURPOSES[part]} by this "
                "potential; calibrate on others, such as its validation set (give no file)"
            )
