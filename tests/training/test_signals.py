from __future__ import annotations

import os
import signal
import threading

import pytest

from brim.training.signals import stop_on_signals


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_cl_s3_the_first_signal_is_a_flag_and_the_update_goes_on(number, capfd):
    finished = []
    with stop_on_signals() as stop:
        assert not stop
        for update in range(5):
            if update == 2:
                send(number)
            finished.append(update)
            if stop:
                break
    assert finished == [0, 1, 2]
    assert stop.received == number
    assert f"{number.name}: finishing this update" in capfd.readouterr().err


def test_cl_s3_a_second_ctrl_c_stops_at_once(capfd):
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as stop:
        send(signal.SIGINT)
        assert stop.received == signal.SIGINT
        send(signal.SIGINT)
        pytest.fail("the second Ctrl-C did nothing")


def test_cl_s3_ctrl_c_after_sigterm_stops_at_once_but_sigterm_again_does_not(capfd):
    with stop_on_signals() as stop:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert stop.received == signal.SIGTERM
    assert capfd.readouterr().err.count("finishing this update") == 1


def test_cl_s3_handlers_are_put_back_also_after_an_error():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ZeroDivisionError), stop_on_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]
        1 / 0  # noqa: B018
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_cl_s3_another_thread_has_a_flag_that_stays_unset():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run() -> None:
        with stop_on_signals() as stop:
            seen.extend([bool(stop), signal.getsignal(signal.SIGINT) is before])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False, True]
