"""Seeded splits, and fingerprints that tell whether two sets share frames."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bayrace.data.frame import DataError, Frame


def split(
    frames: Sequence[Frame], *, valid: int | float, seed: int
) -> tuple[list[Frame], list[Frame]]:
    """Draw a validation set: `valid` is a number of frames, or a fraction when a float below 1.

    Depends on the seed and the number of frames only; both parts keep the order of the files.
    """
    count = _valid_count(len(frames), valid)
    drawn = np.random.default_rng(seed).permutation(len(frames))[:count]
    chosen = set(drawn.tolist())
    train = [frame for place, frame in enumerate(frames) if place not in chosen]
    return train, [frames[place] for place in sorted(chosen)]


def fingerprint(frames: Iterable[Frame]) -> str:
    """Hash of a set of frames, geometry and labels, whatever their order (sha256, hex)."""
    hashes = sorted(frame_fingerprint(frame) for frame in frames)
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def frame_fingerprint(frame: Frame) -> str:
    """Hash of a frame's geometry and labels (sha256, hex)."""
    digest = hashlib.sha256()
    values = (frame.numbers, frame.positions, frame.cell, frame.pbc)
    labels = (frame.energy, frame.forces, frame.stress)
    for value in (*values, *labels):
        array = np.zeros(0) if value is None else np.atleast_1d(value)
        digest.update(f"{value is None} {array.shape};".encode())
        digest.update((array.astype("<f8") + 0.0).tobytes())  # + 0.0 makes -0.0 equal 0.0
    return digest.hexdigest()


def frame_hashes(frames: Iterable[Frame]) -> npt.NDArray[np.int64]:
    """The first eight bytes of each frame's fingerprint, to tell later what has been seen."""
    values = [int(frame_fingerprint(frame)[:16], 16) for frame in frames]
    return np.array(values, dtype=np.uint64).view(np.int64)


def geometry_fingerprint(frame: Frame, *, decimals: int = 5) -> str:
    """Hash of species, positions and cell rounded to `decimals`: equal for duplicates."""
    digest = hashlib.sha256()
    for value in (frame.numbers, frame.positions, frame.cell * frame.pbc[:, None], frame.pbc):
        digest.update(f"{value.shape};".encode())
        digest.update((np.round(value.astype("<f8"), decimals) + 0.0).tobytes())
    return digest.hexdigest()


def _valid_count(total: int, valid: int | float) -> int:
    fraction = isinstance(valid, float) and 0 < valid < 1
    count = max(1, round(valid * total)) if fraction else int(valid)
    if total < 2 and count > 0:
        raise DataError(
            f"valid={valid} of {total} frame{'' if total == 1 else 's'}: too few to set any apart; "
            "give more frames, or the validation set in a file of its own (data.valid=valid.xyz)"
        )
    if not (fraction or count == valid) or not 0 <= count < max(total, 1):
        raise DataError(
            f"valid={valid} of {total} frames: not a number of frames that leaves training data; "
            f"use a whole number below {total}, or a fraction such as 0.1"
        )
    return count
