"""Meshes from files, by trimesh: their corners, triangles and plain colours; no textures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 64 << 20
"""A larger mesh is not shown."""

Colour = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Mesh:
    """vertices (k, 3) m, faces (n, 3). colour: where the file says one."""

    vertices: NDArray[np.float32]
    faces: NDArray[np.uint32]
    colour: Colour | None = None


def meshes_of(file: Path, scale: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Sequence[Mesh]:
    """What stands in a file, scaled along its axes: a mesh for each colour; none where it cannot be read."""
    along = np.array(scale)
    return [Mesh((one.vertices * along).astype(np.float32), one.faces, one.colour) for one in _read(file)]


@lru_cache(maxsize=256)
def _read(file: Path) -> tuple[Mesh, ...]:
    import trimesh

    parts: dict[Colour | None, list[Any]] = {}
    try:
        if file.stat().st_size > MAX_BYTES:
            return ()
        scene: Any = trimesh.load_scene(file)
        for part in scene.dump():  # each where the file's own tree has it
            if len(getattr(part, "faces", ())):
                parts.setdefault(_colour(part.visual), []).append(part)
        found = tuple(_joined(some, colour) for colour, some in parts.items())
    except Exception:  # noqa: BLE001  files are not ours, and trimesh's readers raise what they like
        return ()
    return found if all(np.isfinite(one.vertices).all() for one in found) else ()


def _joined(parts: Sequence[Any], colour: Colour | None) -> Mesh:
    before = np.cumsum([0, *(len(part.vertices) for part in parts[:-1])])
    vertices = np.concatenate([np.asarray(part.vertices) for part in parts])
    faces = np.concatenate([np.asarray(part.faces) + first for part, first in zip(parts, before, strict=True)])
    return Mesh(vertices.astype(np.float32), faces.astype(np.uint32), colour)


def _colour(visual: Any) -> Colour | None:
    """The one colour of a part; of one that has a picture on it, or says none, None."""
    if not visual.defined:
        return None
    material = getattr(visual, "material", None)
    for picture in ("image", "baseColorTexture"):
        if getattr(material, picture, None) is not None:
            return None
    red, green, blue = np.asarray(visual.main_color if material is None else material.main_color)[:3].tolist()
    return red, green, blue
