"""An interrupt of ``tandemq bench`` that falls into a finalizer."""

from __future__ import annotations

import gc
import signal
import sys

import pytest

from tandemq.cli.bench import _Stop


class Asks:
    """Its finalizer is where the signal arrives; ``error`` is raised there."""

    def __init__(self, error: type[BaseException] | None, stop: _Stop) -> None:
        self._error, self._stop = error, stop

    def __del__(self) -> None:
        if self._error is not None:
            raise self._error
        self._stop(signal.SIGINT, None)


@pytest.mark.parametrize(("error", "told"), [(None, False), (OSError, True)])
def test_python_drops_it_in_silence_and_it_is_remembered(
    error: type[BaseException] | None, told: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = _Stop()
    monkeypatch.setattr(sys, "unraisablehook", stop.dropped)
    asks = Asks(error, stop)
    del asks
    gc.collect()
    assert ("Exception ignored" in capfd.readouterr().err) == told
    if not told:
        with pytest.raises(KeyboardInterrupt):
            stop.check()
