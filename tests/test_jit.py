"""Claims about kernels as such."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from hremate._jit import kernel


@kernel
def spin(steps, seed):  # type: ignore[no-untyped-def]
    """Numbers of a linear congruential generator, too many to be done before a timer strikes."""
    state = np.uint64(seed)
    for _ in range(steps):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return np.full(1, state)


@kernel
def spin_twice(steps, seed):  # type: ignore[no-untyped-def]
    return spin(steps, spin(steps, seed)[0])


@pytest.mark.skipif(os.name == "nt", reason="signals of other threads")
def test_ctrl_c_inside_a_kernel_is_ctrl_c() -> None:
    spin(1, 1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.02, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            spin(2 * 10**8, 1)
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_kernels_call_kernels() -> None:
    assert spin_twice(3, 5)[0] == spin(6, 5)[0]


def test_a_wrong_argument_is_still_a_type_error() -> None:
    with pytest.raises(TypeError):
        spin(1)
