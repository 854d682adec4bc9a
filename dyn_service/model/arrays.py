"""What arrays of a model are called."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""(3,), or (n,) where a text says so."""

Matrix = NDArray[np.float64]
"""(3, 3), or (m, n) where a text says so."""
