"""What every test relies on, however the run was started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C reaches Python and the processes of tests.

    Shells start background jobs with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
