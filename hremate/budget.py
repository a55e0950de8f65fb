"""Budgets as people write them: bytes, bytes with a unit, or a percentage of the base peak."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from hremate.errors import BudgetError

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
#: Longest text that is read: room for 2^63 with a unit and for any sensible number of decimals.
_MAX_LENGTH = 100
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%|[A-Za-z]*)\s*", re.ASCII)


def parse_budget(budget: Any, base_peak: int) -> int:
    """Bytes of `budget`: an integer, "12884901888", "12GiB" (2^30), "800MB" (10^6) or "60%".

    A percentage means floor(percent / 100 * base_peak), computed exactly.

    Raises
    ------
    BudgetError
        Not readable, negative, or beyond 2^63.
    """
    if isinstance(budget, (int, np.integer)) and not isinstance(budget, bool):
        result = int(budget)
    elif isinstance(budget, str):
        match = _PATTERN.fullmatch(budget) if len(budget) <= _MAX_LENGTH else None
        unit = match[2].upper() if match else ""
        if match is None or (unit != "%" and unit not in _UNITS):
            raise BudgetError(f"cannot read budget {_shown(budget)}; write bytes, 12GiB, 800MB or 60%")
        number = Fraction(Decimal(match[1]))
        scale = Fraction(base_peak, 100) if unit == "%" else Fraction(_UNITS[unit])
        result = int(number * scale)
    else:
        raise BudgetError(
            f"cannot read budget {_shown(budget)}; give an integer (bytes) or text such as '60%'"
        )
    if result < 0 or result >= 2**63:
        raise BudgetError(f"budget {_shown(budget)} is out of range; it must lie in 0 .. 2^63 - 1 bytes")
    return result


def _shown(budget: Any) -> str:
    """`budget` in an error message, cut short."""
    try:
        text = repr(budget)
    except ValueError:  # the interpreter writes no integers of thousands of digits
        return "of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def format_bytes(nbytes: int) -> str:
    """`nbytes` for people: "3.41 GiB", "512 B"."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes} B"
