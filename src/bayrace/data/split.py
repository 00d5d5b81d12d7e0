"""Seeded splits, and fingerprints that tell whether two sets share frames.

Single frames of a trajectory, drawn at random, are almost copies of the training frames beside
them. Errors on them are too small, and so is a σ that is scaled by these. Whole stretches of the
trajectory are not, but for their ends.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from bayrace.data.frame import DataError, Frame
from bayrace.data.succession import succession_doubts

logger = logging.getLogger(__name__)

Drawn = Literal["auto", "frames", "stretches"]
_STRETCHES = 5  # at most
_LENGTH = 10  # frames of a stretch, at least where there are so many


def split(
    frames: Sequence[Frame], *, valid: int | float, seed: int, drawn: Drawn = "frames"
) -> tuple[list[Frame], list[Frame]]:
    """Draw a validation set: `valid` is a number of frames, or a fraction when a float below 1.

    Single frames, or stretches of frames that follow each other; `auto` takes stretches where
    single frames would be almost copies of training frames, and says so. Both parts keep the order
    of the files.
    """
    count = _valid_count(len(frames), valid)
    random = np.random.default_rng(seed)
    parts = _parted(frames, random.permutation(len(frames))[:count].tolist())
    if drawn == "frames" or (drawn == "auto" and not succession_doubts(*parts)):
        return parts
    stretches = _stretches(len(frames), count, random)
    if drawn == "auto":
        logger.warning(
            "frames that follow each other are almost alike, so validation frames are %d stretch%s "
            "of them, not single ones; a trajectory of its own is better: data.valid=other.xyz",
            len(stretches),
            "" if len(stretches) == 1 else "es",
        )
    return _parted(frames, [place for stretch in stretches for place in stretch])


def _parted(frames: Sequence[Frame], places: Iterable[int]) -> tuple[list[Frame], list[Frame]]:
    """All others, and those at these places."""
    chosen = set(places)
    others = [frame for place, frame in enumerate(frames) if place not in chosen]
    return others, [frames[place] for place in sorted(chosen)]


def _stretches(total: int, count: int, random: np.random.Generator) -> list[range]:
    """`count` places, in stretches of which each part of the data has one."""
    parts = max(1, min(_STRETCHES, count // _LENGTH))
    first = np.linspace(0, total, parts + 1).astype(int)
    lengths = np.diff(np.linspace(0, count, parts + 1).astype(int))
    found = []
    for start, end, length in zip(first[:-1], first[1:], lengths, strict=True):
        begin = int(random.integers(start, end - length + 1))
        found.append(range(begin, begin + int(length)))
    return found


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
