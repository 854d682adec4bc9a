"""Meshes from files, by trimesh: their corners and triangles, nothing of their colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 64 << 20
"""A larger mesh is not shown."""


@dataclass(frozen=True, eq=False)
class Mesh:
    """vertices (k, 3) m, faces (n, 3)."""

    vertices: NDArray[np.float32]
    faces: NDArray[np.uint32]


def mesh_of(file: Path, scale: tuple[float, ...]) -> Mesh | None:
    """The mesh of a file, scaled along its axes; None where it cannot be read."""
    found = _read(file)
    if found is None:
        return None
    return Mesh((found.vertices * np.array(scale)).astype(np.float32), found.faces)


@lru_cache(maxsize=256)
def _read(file: Path) -> Mesh | None:
    import trimesh

    try:
        if file.stat().st_size > MAX_BYTES:
            return None
        loaded: Any = trimesh.load_mesh(file)
        mesh = loaded.to_mesh() if hasattr(loaded, "to_mesh") else loaded
        vertices, faces = np.asarray(mesh.vertices), np.asarray(mesh.faces)
    except Exception:  # noqa: BLE001  files are not ours, and trimesh's readers raise what they like
        return None
    if not len(faces) or not np.isfinite(vertices).all():
        return None
    return Mesh(vertices.astype(np.float32), faces.astype(np.uint32))
