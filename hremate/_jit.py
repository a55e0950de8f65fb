"""The one place that asks numba to compile: every kernel is `@kernel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` in nopython mode, cached on disk where some cache folder is writable.

    Kernels take arrays and scalars only, release the GIL, and never run in parallel: parallelism is
    between processes. numba raises when it finds no writable cache folder (a read-only installation
    without a home); the kernel is then compiled anew in each process.
    """
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        return cast("F", numba.njit(nogil=True)(function))
