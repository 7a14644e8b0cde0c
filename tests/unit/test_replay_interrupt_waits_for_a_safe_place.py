"""Ctrl-C is raised where a run asks for it, and nowhere between."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from radix.replay.interrupt import Interrupt, deferred_interrupt


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    # A signal sent to oneself is handled before the next step of the interpreter, or the one after.
    time.sleep(0)


def test_interrupt_is_raised_where_it_is_asked_for() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), deferred_interrupt() as interrupt:
        interrupt.check()
        press()
        reached = True
        interrupt.check()
    assert reached


def test_second_interrupt_is_an_ordinary_one() -> None:
    presses = 0
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        while presses < 3:
            presses += 1
            press()
    assert presses == 2


def test_handler_of_before_stands_again_after_the_body() -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupt():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_another_thread_runs_without_being_asked() -> None:
    found: list[Interrupt] = []

    def run() -> None:
        with deferred_interrupt() as interrupt:
            interrupt.check()
            found.append(interrupt)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(found) == 1
