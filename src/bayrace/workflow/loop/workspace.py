"""Where a loop works: its settings, its state, and the files of its rounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bayrace.config.loop import LoopConfig
from bayrace.data.frame import Frame, split_isolated
from bayrace.data.read import read_frames
from bayrace.workflow.loop.observer import LoopObserver
from bayrace.workflow.loop.runs import KEYS, read_traj
from bayrace.workflow.loop.state import State
from bayrace.workflow.loop.steps import Labelled

MODEL, TRAIN, VALID = "model.bayrace", "train.traj", "valid.traj"
CHOSEN, LABELLED, JUDGED = "chosen.traj", "labelled.traj", "judged.npz"


@dataclass(frozen=True, eq=False)
class Workspace:
    """Where a loop works, and with what."""

    config: LoopConfig
    state: State
    watch: LoopObserver

    @property
    def root(self) -> Path:
        """Of the whole loop."""
        return Path(self.config.output)

    def folder(self, number: int) -> Path:
        """Of a round."""
        return self.root / f"round-{number:02d}"

    def model(self, number: int) -> Path:
        """The potential that came of a round."""
        return self.folder(number) / MODEL

    def seed(self, number: int) -> int:
        """Of a round; below 2³¹."""
        return int(np.random.SeedSequence([self.config.seed, number]).generate_state(1)[0] // 2)

    @cached_property
    def tests(self) -> dict[str, list[Frame]]:
        """Test sets."""
        return {
            name: split_isolated(read_frames(list(paths), keys=KEYS, config_weights={}))[0]
            for name, paths in self.config.test.items()
        }

    def labels(self, number: int) -> Labelled:
        """What labelling came to in a round, where it is done."""
        found = self.state.result(number, Labelled)
        assert found is not None
        return found

    def labelled(self, upto: int) -> tuple[list[Frame], list[Frame]]:
        """New labels of the rounds 1 to `upto`: for training, and for validation."""
        parts: dict[str, list[Frame]] = {"training": [], "validation": []}
        for number in range(1, upto + 1):
            uses = [use for use in self.labels(number).uses if use != "failed"]
            frames = read_traj(self.folder(number) / LABELLED) if uses else []
            for use, frame in zip(uses, frames, strict=True):
                parts[use].append(frame)
        return parts["training"], parts["validation"]

    def data(self, upto: int) -> tuple[list[Frame], list[Frame]]:
        """Everything to train on and to validate with after a round."""
        train, valid = self.labelled(upto)
        first = self.folder(0)
        return [*read_traj(first / TRAIN), *train], [*read_traj(first / VALID), *valid]
