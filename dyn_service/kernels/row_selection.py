"""Calls of a kernel that write only selected rows of its outputs.

The outputs of such a kernel have one row per link, or one per joint. Its machine code contains a table with the place
of each output's entry in the buffer of results (`kernels.lower`). A selection has a table of the entries of its rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dyn_service.kernels.jit import LoadedCode, Loop
from dyn_service.kernels.loop import Body, loop_of
from dyn_service.kernels.signature import Signature

_ROWS = ("nl", "nj")
"""Dimensions of which rows may be selected."""


def is_selectable(signature: Signature) -> bool:
    """Whether rows of the outputs may be selected: the first axis of all of them has the same such dimension."""
    first = {operand.dims[:1] for operand in signature.outputs}
    return not signature.empty and first in [{(dimension,)} for dimension in _ROWS]


@dataclass(frozen=True, eq=False)
class Selected:
    """Selected rows of a kernel. signature: with the shapes of the selection. loop: of these rows."""

    signature: Signature
    loop: Loop


def selected(signature: Signature, code: LoadedCode, rows: Sequence[int]) -> Selected | None:
    """Returns the selection of rows of a kernel; None if the kernel computes whole outputs only.

    Args:
        signature: The signature of the kernel.
        code: Its machine code.
        rows: The indices of the rows, in order.
    """
    body = Body.of(code)
    if not (len(rows) and is_selectable(signature) and body.places):
        return None
    places = np.array((ctypes.c_int32 * body.results).from_address(body.places), dtype=np.int32)
    row_places, first = [], 0
    for operand in signature.outputs:
        row_places.append(places[first : first + operand.size].reshape(operand.shape[0], -1)[list(rows)].reshape(-1))
        first += operand.size
    outputs = tuple(replace(operand, shape=(len(rows), *operand.shape[1:])) for operand in signature.outputs)
    # Another table of places for the same code: a kernel for each selection would take seconds to compile.
    selection = replace(signature, outputs=outputs)
    return Selected(
        selection, loop_of(selection, code, ctypes.create_string_buffer(np.concatenate(row_places).tobytes()))
    )
