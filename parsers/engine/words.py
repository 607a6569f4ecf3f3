"""Literals written without quotes: numbers, constants, names. Pure functions on whole words.

Numbers are Python's (language reference, "Numeric literals") plus decimals with leading zeros.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ..events import Reason
from .faults import Fault

CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}

_RADIX = re.compile(r"0(?:[xX](?:_?[0-9a-fA-F])+|[oO](?:_?[0-7])+|[bB](?:_?[01])+)")
_DECIMAL = re.compile(r"[0-9](?:_?[0-9])*")
_FLOAT = re.compile(
    r"(?:(?:[0-9](?:_?[0-9])*)?\.[0-9](?:_?[0-9])*|[0-9](?:_?[0-9])*\.?)(?:[eE][+-]?[0-9](?:_?[0-9])*)?"
)
# Python writes these floats so, and other languages as names: as a bare word they would become text.
_NOT_FINITE = frozenset({"nan", "inf", "infinity"})


def literal(word: str) -> tuple[Any, bool]:
    """The value of a number or constant, and whether reading it took a repair.

    Raises Fault: NOT_FINITE, TOO_LARGE, or NOT_A_LITERAL when it is neither.
    """
    if word in CONSTANTS:
        return CONSTANTS[word], False
    sign, digits = (word[0], word[1:]) if word[0] in "+-" else ("", word)
    if digits.lower() in _NOT_FINITE:
        raise Fault(Reason.NOT_FINITE)
    try:
        if _RADIX.fullmatch(digits):
            return _sized(int(sign + digits, 0)), False
        if _DECIMAL.fullmatch(digits):
            value = _sized(int(sign + digits))
            return value, digits[0] == "0" and value != 0
    except ValueError:  # more digits than sys.get_int_max_str_digits()
        raise Fault(Reason.TOO_LARGE) from None
    if _FLOAT.fullmatch(digits):
        number = float(sign + digits)
        if not math.isfinite(number):
            raise Fault(Reason.NOT_FINITE)
        return number, False
    raise Fault(Reason.NOT_A_LITERAL)


def _sized(value: int) -> int:
    str(value)  # hexadecimal reads at any size, but could not be written as JSON
    return value
