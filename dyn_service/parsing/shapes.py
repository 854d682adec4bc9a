"""Visual and collision shapes of links, and paths of their meshes. No mesh is opened here.

A shape that cannot be read is kept with the reason: no number of the dynamics depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from dyn_service.errors import DynError
from dyn_service.model.description import Shape
from dyn_service.parsing.quantities import Place, decimals, quoted, rotation_of_quaternion, rotation_of_rpy
from dyn_service.parsing.xml_elements import Element

MESHES = (".stl", ".dae", ".obj", ".ply", ".glb", ".gltf")

_SIZES = {"box": ("size",), "cylinder": ("radius", "length"), "capsule": ("radius", "length"), "sphere": ("radius",)}


def shapes_of(link: Element, file: str, palette: Mapping[str, tuple[float, ...]]) -> tuple[Shape, ...]:
    """Returns the `<visual>` and `<collision>` shapes of a URDF link.

    Args:
        link: The element.
        file: The file's name, for errors.
        palette: RGBA of the robot's materials, by name.
    """
    found = []
    for element in link.children:
        if element.tag in ("visual", "collision"):
            place = Place(file, f"link {quoted(link.attributes.get('name', ''))}", element.line)
            try:
                shape = _shape(element, place, palette)
            except DynError as error:
                shape = Shape(unread=str(error))
            found.append(replace(shape, visual=element.tag == "visual", collision=element.tag == "collision"))
    return tuple(found)


def _shape(element: Element, place: Place, palette: Mapping[str, tuple[float, ...]]) -> Shape:
    xyz, rotation, rgba = np.zeros(3), np.eye(3), None
    for origin in element.all("origin")[:1]:
        given = origin.attributes
        xyz = decimals(given.get("xyz", "0 0 0"), 3, "xyz", place)
        rotation = rotation_of_rpy(decimals(given.get("rpy", "0 0 0"), 3, "rpy", place))
        if "quat_xyzw" in given:
            rotation = rotation_of_quaternion(decimals(given["quat_xyzw"], 4, "quat_xyzw", place), place, [])
    for material in element.all("material")[:1]:
        rgba = rgba_of(material, place) or palette.get(material.attributes.get("name", ""))
    for child in (child for geometry in element.all("geometry")[:1] for child in geometry.children):
        given = child.attributes
        if child.tag == "mesh":
            scale = decimals(given.get("scale", "1 1 1"), 3, "scale", place)
            return Shape("mesh", tuple(scale.tolist()), xyz, rotation, rgba=rgba, mesh=given.get("filename", ""))
        if child.tag in _SIZES:
            counts = ((name, 3 if name == "size" else 1) for name in _SIZES[child.tag])
            size = [x for name, n in counts for x in decimals(given.get(name, ""), n, name, place).tolist()]
            return Shape(child.tag, tuple(size), xyz, rotation, rgba=rgba)  # type: ignore[arg-type]  # is in _SIZES
    return Shape(unread=f"its geometry is not supported, expected one of {', '.join(_SIZES)}, mesh")


def rgba_of(material: Element, place: Place) -> tuple[float, ...] | None:
    """Returns the colour of a URDF `<material>`; None if it is missing or malformed."""
    for colour in material.all("color")[:1]:
        try:
            return tuple(decimals(colour.attributes.get("rgba", ""), 4, "rgba", place).clip(0.0, 1.0).tolist())
        except DynError:
            return None
    return None


def without_capsules(shape: Shape) -> list[Shape]:
    """Returns a capsule as a cylinder and two spheres; any other shape unchanged."""
    if shape.kind != "capsule":
        return [shape]
    radius, length = shape.size
    ends = [shape.xyz + side * length / 2.0 * shape.rotation[:, 2] for side in (-1.0, 1.0)]
    return [replace(shape, kind="cylinder"), *(replace(shape, kind="sphere", size=(radius,), xyz=end) for end in ends)]


def mesh_file(address: str, folder: Path) -> Path | None:
    """Returns the file of a mesh URI, or None if it does not exist.

    `package://NAME/..` is searched in folders called NAME above the robot's file, in `ROS_PACKAGE_PATH`, in `share`
    below `AMENT_PREFIX_PATH`, and in the Python package NAME; nothing is downloaded.
    """
    scheme, is_uri, rest = address.partition("://")
    name, _, inside = rest.partition("/")
    candidates = [] if is_uri else [folder / address]
    if scheme in ("package", "model"):
        candidates = [home / unquote(inside).lstrip("/") for home in _packages(name, folder)]
    elif scheme == "file":
        candidates = [Path("/", unquote(inside))]
    return next((path for path in candidates if path.suffix.lower() in MESHES and os.path.isfile(path)), None)


def _packages(name: str, folder: Path) -> Iterator[Path]:
    for parent in (folder, *folder.parents):
        if parent.name == name:
            yield parent
        if (parent / name).is_dir():
            yield parent / name
    for root in os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep):
        if root:
            yield from (Path(root) / name, Path(root)) if Path(root).name == name else (Path(root) / name,)
    for root in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        if root:
            yield Path(root) / "share" / name
    spec = find_spec(name) if name.isidentifier() else None
    for home in spec.submodule_search_locations or () if spec is not None else ():
        yield Path(home)
