"""Compiles a traced kernel, straight-line or as loops, to a NumPy ufunc."""

from __future__ import annotations

import gc

import numpy as np

from dyn_service.kernels.budget import batch_sizes
from dyn_service.kernels.graph import Graph
from dyn_service.kernels.jit import LoadedCode, Loop, compile_ir, host, make_gufunc
from dyn_service.kernels.loop import loop_of
from dyn_service.kernels.lower import lower
from dyn_service.kernels.rolled import Rolled
from dyn_service.kernels.staged import Staged

_LONG_TEXT = 4 << 20
"""Length of a kernel's IR above which garbage is collected before compiling. The llvmlite module that the text was
written from is many times as large, and in reference cycles.
"""


def compiled(graph: Graph | Rolled | Staged, *, optimised: bool = True) -> tuple[np.ufunc, Loop, bytes]:
    """Returns the gufunc of a kernel, its loop, and its object code.

    optimised: False takes less time, for a kernel that runs only once to certify another.
    """
    lanes = host().lanes
    if graph.is_rolled:
        lanes = (batch_sizes(graph, lanes) or (1, 1))[0]
    text = lower(graph, lanes)
    if len(text) > _LONG_TEXT:
        gc.collect()
    code = compile_ir(text, level=int(optimised))
    loop = loop_of(graph.signature, LoadedCode(code))
    return make_gufunc(graph.signature, loop), loop, code
