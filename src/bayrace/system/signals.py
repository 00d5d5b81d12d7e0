"""Ctrl-C, SIGTERM and SIGHUP as a question the training loop asks after each step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGINT, SIGTERM or SIGHUP has arrived.

    The first signal only raises the flag, so that the loop can save; a second SIGINT raises
    KeyboardInterrupt at once. The earlier handlers return at the end. Outside the main thread
    Python cannot handle signals, and the flag stays down.
    """
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if number == signal.SIGINT and received.count(number) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = {number: signal.signal(number, handle) for number in _numbers()}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _numbers() -> list[signal.Signals]:
    """Those that end a training: SIGHUP, of a terminal that closes, unless nohup has it ignored."""
    closing = getattr(signal, "SIGHUP", None)  # not on Windows
    heard = closing is not None and signal.getsignal(closing) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([closing] if heard and closing else [])]
