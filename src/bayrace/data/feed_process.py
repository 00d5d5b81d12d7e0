"""Reads structures ahead of a training: `python -m bayrace.data.feed_process`, of data/feed.py.

Standard input has a JSON line with what to read, and then requests: the number of structures and
their places, as int64. Each is answered on standard output by a length (int64) and a batch in the
safetensors format; a negative length is that of a message. It ends when its input does, so that it
does not outlive the training; signals are the training's business.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import IO, Any

import numpy as np
import safetensors.torch
import torch

from bayrace.core.graph import GraphBatch
from bayrace.core.labels import Labels
from bayrace.data.check import check_frame
from bayrace.data.dataset import Dataset
from bayrace.data.frame import DataError, LabelKeys
from bayrace.data.store import Store

_WORD = 8  # bytes of a number


def main() -> None:
    """Answer until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    source = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody else may print there
    builder: Builder | None = None
    job: dict[str, Any] = json.loads(source.readline())
    while request := source.read(_WORD):
        places = np.frombuffer(source.read(_WORD * _number(request)), dtype=np.int64)
        try:
            builder = builder or Builder(job)
            _answer(answers, builder.packed(places.tolist()), 1)
        except (ValueError, OSError) as error:  # DataError: their messages are for users
            _answer(answers, str(error).encode(), -1)


class Builder:
    """Makes batches of structures that are read one at a time."""

    def __init__(self, job: dict[str, Any]) -> None:
        keys = LabelKeys(**job["keys"])
        self.store = Store(job["paths"], keys=keys, config_weights=job["config_weights"])
        self.elements = tuple(job["elements"])
        self.cutoff: float = job["cutoff"]
        self.references = {int(number): energy for number, energy in job["references"].items()}
        self.dtype = torch.float64 if job["dtype"] == "float64" else torch.float32

    def batch(self, places: list[int]) -> tuple[GraphBatch, Labels]:
        """Graph and labels of these structures, checked, as a data set in memory gives them."""
        frames = [self.store.frame(place) for place in places]
        for frame in frames:
            check_frame(frame)
            unknown = set(frame.numbers.tolist()) - set(self.elements)
            if unknown:
                raise DataError(
                    f"{frame.origin}: element {min(unknown)} was not among the structures that "
                    "were looked at before training; raise data.sample, or give data.references of "
                    "all elements"
                )
        data = Dataset(
            frames, elements=self.elements, cutoff=self.cutoff, references=self.references
        )
        return data.batch(range(len(frames)), dtype=self.dtype)

    def packed(self, places: list[int]) -> bytes:
        """A batch as bytes."""
        batch, labels = self.batch(places)
        tensors = {f"batch/{name}": value for name, value in vars(batch).items()}
        tensors["batch/species_counts"] = torch.tensor(batch.species_counts)
        tensors |= {f"labels/{name}": value for name, value in vars(labels).items()}
        return safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()})


def unpacked(data: bytes) -> tuple[GraphBatch, Labels]:
    """The inverse of `Builder.packed`."""
    tensors = safetensors.torch.load(data)
    fields = {name.removeprefix("batch/"): v for name, v in tensors.items() if "batch/" in name}
    labels = {name.removeprefix("labels/"): v for name, v in tensors.items() if "labels/" in name}
    counts = tuple(fields.pop("species_counts").tolist())
    return GraphBatch(**fields, species_counts=counts), Labels(**labels)


def _answer(answers: IO[bytes], data: bytes, sign: int) -> None:
    answers.write(np.int64(sign * len(data)).tobytes())
    answers.write(data)
    answers.flush()


def _number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder, signed=True)


if __name__ == "__main__":
    main()
