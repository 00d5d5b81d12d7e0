"""Who hears of a training or a fit while it goes on, and who may end it: one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from bayrace.core.outputs import Params
from bayrace.train.settings import Event


class StoppedError(Exception):
    """Somebody has ended what only looks at structures, which has nothing to save."""


@dataclass(frozen=True)
class Callbacks:
    """Nobody hears and nobody ends it, unless given."""

    observer: Callable[[Event], None] = lambda _: None  # steps and validations, where it trains
    stop: Callable[[], bool] = lambda: False  # once it is true, what trains saves and ends
    progress: Callable[[int], None] = lambda _: None  # structures done, where it only looks
    # The epoch, from 1, and the parameters themselves, not their average. A resumed run calls it
    # again, with the same parameters, for epochs that its checkpoint lacks.
    after_epoch: Callable[[int, Params], None] = lambda *_: None

    def ending(self) -> Self:
        """The same, but what reports progress is ended by a StoppedError once `stop` is true."""

        def progress(done: int) -> None:
            self.progress(done)
            if self.stop():
                raise StoppedError

        return replace(self, progress=progress)


NOBODY = Callbacks()
