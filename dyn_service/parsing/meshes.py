"""Volume and moments of inertia of meshes, as MuJoCo computes them from triangles; files are read by trimesh."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.parsing.includes import Elsewhere
from dyn_service.parsing.pose import Pose
from dyn_service.parsing.quantities import Place, quoted
from dyn_service.support.optional import load

MAX_BYTES = 256 << 20  # of all mesh files of a robot
FORMATS = (".stl", ".obj")  # MuJoCo reads both, and trimesh opens no other file for them
_POLYGON = re.compile(rb"^f(?:[ \t]+[0-9/-]+){5}", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Mesh:
    """A mesh of a robot file; `mode`, `position` and `rotation` are MJCF's `inertia`, `refpos` and `refquat`.

    file: "" for a mesh without a file. capped: whether the number of vertices of its convex hull is limited.
    """

    file: str
    place: Place
    mode: str
    scale: Vector
    position: Vector = field(default_factory=lambda: np.zeros(3))
    rotation: Matrix = field(default_factory=lambda: np.eye(3))
    capped: bool = False


class Meshes:
    """The meshes of a robot, by name.

    folder: the folder of the robot's file; None: no file is opened. inside: the folder of the meshes, relative to it.
    """

    def __init__(self, assets: Mapping[str, Mesh], folder: Path | None, inside: str = "") -> None:
        self._inside = inside
        self._assets, self._folder, self._left = assets, folder, MAX_BYTES
        self._found: dict[str, tuple[float, Pose, Vector]] = {}

    def file(self, name: str, place: Place) -> tuple[str, Pose, tuple[float, ...]]:
        """Returns the path of a mesh relative to the robot's file, the pose of its frame in the geom's, and its scales.

        Raises:
            UrdfError: The mesh has no file, or its reference pose cannot be combined with its scales.
        """
        asset = self._assets.get(name)
        if asset is None or not asset.file:
            raise place.fault(f"the mesh {quoted(name)} has no file in <asset>")
        turn, scale = asset.rotation, asset.scale
        if (scale != scale[0]).any() and not np.array_equal(turn, np.eye(3)):
            raise asset.place.fault("a refquat with different scales along the axes is not supported")
        at = Pose(turn.T, -turn.T @ asset.position * scale)
        return self._relative(asset.file, asset.place), at, tuple(scale.tolist())

    def _relative(self, file: str, place: Place) -> str:
        """Returns the path from the robot's file. Last, MuJoCo looks in the folder of the file that has the asset."""
        inside = os.path.join(self._inside, file)
        if self._folder is None or not isinstance(place, Elsewhere) or (self._folder / inside).is_file():
            return inside
        return os.path.join(os.path.relpath(Path(place.file).parent, self._folder), file)

    def weighed(self, name: str, place: Place) -> tuple[float, Pose, Vector]:
        """Returns volume, m^3 (area, m^2, for a shell), the frame of the principal axes, and moments per kilogram.

        Raises:
            UrdfError: There is no such mesh or file, or it has no volume.
            MissingLibraryError: trimesh is not installed.
        """
        if name not in self._assets:
            raise place.fault(f"there is no mesh {quoted(name)} in <asset>")
        if name in self._found:
            return self._found[name]
        asset = self._assets[name]
        mode = asset.mode
        if mode == "convex" and asset.capped:
            raise asset.place.fault("maxhullvert is not supported: add an <inertial> to its body")
        mesh = self._mesh(asset.file, asset.place, mode)
        corners = ((mesh.vertices - asset.position) @ asset.rotation * asset.scale)[mesh.faces]
        areas = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1) / 2.0
        com, count = areas @ corners.mean(axis=1) / max(areas.sum(), 1e-300), 3.0 if mode == "shell" else 4.0
        for again in (False, True):  # from the centre of mass again: volumes of the legacy way differ
            sides = corners - com
            sizes = areas if mode == "shell" else np.linalg.det(sides) / 6.0
            sizes = np.abs(sizes) if mode == "legacy" else sizes * np.sign(sizes.sum())
            size, sums = float(sizes.sum()), sides.sum(axis=1)
            if not size > 0.0:
                raise asset.place.fault(
                    "the mesh has no volume: add an <inertial> to its body, or set the shape's mass to 0"
                )
            com = com if again else com + sizes @ sums / count / size
        squares = np.einsum("n,nki,nkj->ij", sizes, sides, sides) + np.einsum("n,ni,nj->ij", sizes, sums, sums)
        squares /= count * (count + 1.0) * size
        moments, axes = np.linalg.eigh(np.trace(squares) * np.eye(3) - squares)
        axes[:, 2] *= np.linalg.det(axes)
        return self._found.setdefault(name, (size, Pose(axes, com), moments))

    def _mesh(self, file: str, place: Place, mode: str) -> Any:
        """The `trimesh.Trimesh` of a file."""
        if self._folder is None or "://" in file or Path(file).suffix.lower() not in FORMATS:
            known = "a .stl or .obj file and a robot read from a file (not from text), or an <inertial>"
            raise place.fault(f"a mass depends on the mesh {quoted(file)}: expected {known}")
        trimesh, path = load("the mass of a mesh", "trimesh"), self._folder / self._relative(file, place)
        if not path.is_file() or path.stat().st_size > self._left:
            raise place.fault(f"there is no file {quoted(file)} in the mesh folder, or it has over {self._left} bytes")
        self._left -= path.stat().st_size
        try:
            data = path.read_bytes()
            mesh = trimesh.load(io.BytesIO(data), file_type=path.suffix[1:].lower(), force="mesh", process=False)
            mesh.vertices = np.asarray(mesh.vertices, dtype=np.float32).astype(np.float64)  # as MuJoCo keeps them
            mesh = mesh.convex_hull if mode == "convex" else mesh
        except Exception as fault:  # noqa: BLE001  files are not ours, and trimesh's readers raise what they like
            raise place.fault(f"the mesh {quoted(file)} cannot be read: {quoted(str(fault))}") from None
        if mode in ("legacy", "shell") and path.suffix.lower() == ".obj" and _POLYGON.search(data):
            text = "has faces of more than four corners, which MuJoCo triangulates differently: save it with triangles"
            raise place.fault(f"the mesh {quoted(file)} {text}")
        return mesh
