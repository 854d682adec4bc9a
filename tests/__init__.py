"""Tests."""

import os

# Before NumPy is imported: pytest-xdist fills the cores, and each worker's BLAS would start a thread per core, which
# makes small matrices slower many times over.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
