from __future__ import annotations

import signal
import threading

import pytest

from bayrace.system.signals import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_raises_the_flag(number: signal.Signals) -> None:
    outside = signal.signal(number, signal.default_int_handler)  # nohup ignores hang-ups
    try:
        before = signal.getsignal(number)
        with stop_on_signals() as stop:
            assert not stop()
            signal.raise_signal(number)
            assert stop()
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, outside)


def test_a_second_interrupt_interrupts() -> None:
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGTERM)


def test_other_threads_have_no_signals() -> None:
    answers = []

    def work() -> None:
        with stop_on_signals() as stop:
            answers.append(stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]


def test_a_closed_terminal_is_not_heard_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)
