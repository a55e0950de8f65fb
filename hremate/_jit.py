"""The one place that asks numba to compile: every kernel is `@kernel`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache
from numba.core.registry import CPUDispatcher

F = TypeVar("F", bound=Callable[..., Any])


_log = logging.getLogger("hremate")


class _Cache(FunctionCache):
    """A cache on disk that is a convenience: what is wrong with it costs a compilation, never an answer."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # unpickling a damaged file may raise anything
            _log.debug("a compiled kernel cannot be read (%s: %s)", type(error).__name__, error)
            with suppress(Exception):
                self.flush()  # a damaged index would stay for ever
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk, or a damaged index
            _log.debug("a compiled kernel cannot be kept (%s: %s)", type(error).__name__, error)


class _Kernel(CPUDispatcher):
    """A compiled function that hands on what a signal handler raised while it ran.

    Python runs the handlers of signals as soon as a kernel returns; numba then has a result as well as an
    exception, and the interpreter turns Ctrl-C into a SystemError.
    """

    def __call__(self, *args: Any) -> Any:
        try:
            return super().__call__(*args)
        except SystemError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None


def kernel(function: F) -> F:
    """Compile `function` in nopython mode, cached on disk where some cache folder is writable.

    Kernels take arrays and scalars only, release the GIL, and never run in parallel: parallelism is
    between processes. numba raises when it finds no writable cache folder (a read-only installation
    without a home); the kernel is then compiled anew in each process.
    """
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        compiled = numba.njit(nogil=True)(function)
    if isinstance(compiled, CPUDispatcher):  # not so where NUMBA_DISABLE_JIT is set
        compiled.__class__ = _Kernel
        cache = getattr(compiled, "_cache", None)
        if type(cache) is FunctionCache:
            cache.__class__ = _Cache
    return cast("F", compiled)
