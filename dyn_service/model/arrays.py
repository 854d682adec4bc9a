"""Type aliases of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""(3,) unless stated otherwise."""

Matrix = NDArray[np.float64]
"""(3, 3) unless stated otherwise."""
