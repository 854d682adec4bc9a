"""Selected rows of a kernel's outputs: only these are written.

The outputs of such a kernel have one row per link, or one per joint. Its machine code contains a table with the place
of each output's entry in a block's buffer (`kernels.lower`). A selection is another such table, for the entries of its
rows, which the kernel's loop gets as its data.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dyn_service.kernels.jit import LoadedCode
from dyn_service.kernels.signature import Signature

PLACES = "places"
"""Name of the function in the machine code that returns the address of the table."""

_ROWS = ("nl", "nj")
"""Dimensions of which rows may be selected."""


def is_selectable(signature: Signature) -> bool:
    """Whether rows of the outputs may be selected: the first axis of all of them has the same such dimension."""
    first = {operand.dims[:1] for operand in signature.outputs}
    return not signature.empty and first in [{(dimension,)} for dimension in _ROWS]


@dataclass(frozen=True, eq=False)
class Selected:
    """Selected rows of a kernel. signature: with the shapes of the selection. data: what its loop gets."""

    signature: Signature
    data: Any


def selected(signature: Signature, code: LoadedCode, rows: Sequence[int]) -> Selected | None:
    """Returns the selection of rows of a kernel; None if the kernel computes whole outputs only.

    Args:
        signature: The signature of the kernel.
        code: Its machine code.
        rows: The indices of the rows, in order.
    """
    function = code.address(PLACES) if len(rows) and is_selectable(signature) else 0
    if not function:
        return None
    address = ctypes.CFUNCTYPE(ctypes.c_void_p)(function)()
    total = sum(operand.size for operand in signature.outputs)
    places = np.array((ctypes.c_int32 * total).from_address(address), dtype=np.int32)
    chosen, first = [], 0
    for operand in signature.outputs:
        chosen.append(places[first : first + operand.size].reshape(operand.shape[0], -1)[list(rows)].reshape(-1))
        first += operand.size
    table = np.concatenate(chosen).tobytes()
    data = ctypes.create_string_buffer(16 + len(table))
    data.raw = struct.pack("=2q", len(rows), ctypes.addressof(data) + 16) + table
    outputs = tuple(replace(operand, shape=(len(rows), *operand.shape[1:])) for operand in signature.outputs)
    return Selected(replace(signature, outputs=outputs), data)
