"""Shapes in converted files have the poses that MuJoCo and Pinocchio give those of the source, in random states."""

from __future__ import annotations

import os
from pathlib import Path

import coal
import mujoco
import numpy as np
import pinocchio
import pytest
import trimesh

from dyn_service.model.description import Note
from dyn_service.parsing.conversion import convert, urdf_of, written
from dyn_service.parsing.files import read_file, read_text
from tests.oracle.example_robots import path_of
from tests.phrases import unnamed

ROUNDED = 1e-13  # m; products of ten rotations, in files that keep 16 digits

BOX = trimesh.creation.box((0.1, 0.2, 0.3)).vertices

MJCF = """<mujoco model="all"><compiler angle="radian" meshdir="parts" autolimits="true"/>
<default><geom rgba="0.1 0.2 0.3 1"/><default class="seen"><geom contype="0" conaffinity="0" group="1"/></default>
</default>
<asset><mesh name="block" file="block.stl" scale="2 2 2" refpos="0.1 0.2 0.3" refquat="0.6 0.8 0 0"/>
<mesh file="block.stl" name="thin" scale="1 2 3"/></asset>
<worldbody><geom type="plane" size="0 0 1" pos="0 0 -1" euler="0.1 0 0"/>
<body name="a" pos="0.1 0.2 0.3" euler="0.3 0.2 0.1"><joint name="x" type="slide" axis="1 0 0"/>
<joint name="j" axis="0 1 1" pos="0.1 0 0.2"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
<geom class="seen" type="sphere" size="0.1" pos="1 2 3"/><geom type="box" size="0.1 0.2 0.3" euler="1 2 3"/>
<frame pos="0 0.5 0" euler="0 0 1"><geom type="capsule" size="0.05" fromto="0 0 0 0.3 0.4 0.5"/></frame>
<geom type="cylinder" size="0.05 0.2" pos="0 1 0" group="3"/>
<body name="b" pos="0 0 1"><joint name="k" axis="1 0 0" pos="0 0.3 0"/>
<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/><geom type="ellipsoid" size="0.1 0.2 0.3" axisangle="1 2 0 0.7"/>
<geom type="mesh" mesh="block" pos="0 0.1 0" euler="0.1 0.2 0.3" class="seen"/>
<geom type="mesh" mesh="thin" pos="0 0.2 0" euler="0.1 0.2 0.3"/></body></body></worldbody></mujoco>"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "in" / "all.xml"
    (file.parent / "parts").mkdir(parents=True)
    trimesh.creation.box((0.1, 0.2, 0.3)).export(file.parent / "parts" / "block.stl")
    file.write_text(MJCF, "utf-8")
    return file


def mujoco_points(file: Path, bodies: dict[str, float]) -> dict[str, list[np.ndarray]]:
    """Points of each body's geoms in the world, by body: corners of meshes, ends of axes of the others."""
    model = mujoco.MjModel.from_xml_path(str(file))
    data = mujoco.MjData(model)
    for joint, value in bodies.items():
        data.joint(joint).qpos[0] = value
    mujoco.mj_kinematics(model, data)
    points_of: dict[str, list[np.ndarray]] = {}
    for k in range(model.ngeom):
        size = np.diag(model.geom_size[k])
        points = np.vstack([np.zeros(3), size if model.geom_type[k] != mujoco.mjtGeom.mjGEOM_PLANE else np.eye(3)[2:]])
        if model.geom_type[k] == mujoco.mjtGeom.mjGEOM_MESH:
            first = model.mesh_vertadr[model.geom_dataid[k]]
            points = model.mesh_vert[first : first + model.mesh_vertnum[model.geom_dataid[k]]]
        points = data.geom_xpos[k] + points @ data.geom_xmat[k].reshape(3, 3).T
        if model.geom_type[k] == mujoco.mjtGeom.mjGEOM_MESH:
            points = points[np.lexsort(np.round(points, 4).T)]
        name = model.body(model.geom_bodyid[k]).name
        points_of.setdefault(name, []).append(
            np.vstack([points, [[model.geom_contype[k], model.geom_group[k] > 2, 0.0]]])
        )
    return points_of


@pytest.mark.parametrize("format_name", ["xml", "sdf"])
def test_geoms_stand_where_mujoco_places_those_of_the_source(source: Path, tmp_path: Path, format_name: str) -> None:
    rng = np.random.default_rng(4)
    middle, back = tmp_path / "there" / f"r.{format_name}", tmp_path / "back" / "deep" / "r.xml"
    for target in (middle, back):
        target.parent.mkdir(parents=True)
    joints = ["x", "j", "k"]
    if format_name == "sdf":  # from which MuJoCo would get links without mass between joints of one body
        text = MJCF.replace('<joint name="x" type="slide" axis="1 0 0"/>', "")
        source.write_text(text.replace(' pos="0.1 0 0.2"', "").replace(' pos="0 0.3 0"', ""), "utf-8")
        joints = ["j", "k"]
    notes = convert(source, middle) + convert(middle, back)
    losses = {"its shapes are not written: SDFormat's world has none"} if format_name == "sdf" else set()
    assert {note.text for note in notes if "shape" in note.text} == losses
    for _ in range(5):
        q = dict(zip(joints, rng.uniform(-1.0, 1.0, len(joints)), strict=True))
        expected, points = mujoco_points(source, q), mujoco_points(back, q)
        if format_name == "sdf":  # there a shape is a visual one or a collision, so those that are both are two
            del expected["world"]
            expected = {
                name: [geom for geom in geoms for _ in range(2 if geom[-1, 0] and not geom[-1, 1] else 1)]
                for name, geoms in expected.items()
            }
        assert {name: len(geoms) for name, geoms in points.items()} == {n: len(g) for n, g in expected.items()}
        for name, geoms in expected.items():
            for geom, other in zip(geoms, points[name], strict=True):
                # meshes have single precision, and 2 m
                atol = 2e-6 if len(geom) > 6 else ROUNDED
                np.testing.assert_allclose(other[:-1], geom[:-1], atol=atol)
                assert format_name == "sdf" or (other[-1] == geom[-1]).all()


def test_urdf_gets_capsules_in_parts_and_notes_on_what_it_lacks(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "r.urdf"
    notes = convert(source, target)
    assert {(note.kind, note.element, note.text) for note in notes if "shape" in note.text} == {
        ("dropped", "link 'world'", "a shape: URDF has no plane"),
        ("dropped", "link 'b'", "a shape: URDF has no ellipsoid"),
    }
    links = {link.name: link for link in read_file(target).links}
    capsule = [shape for shape in links["a"].shapes if shape.collision][1:4]
    assert [(shape.kind, np.round(shape.size, 9).tolist()) for shape in capsule] == [
        ("cylinder", [0.05, round(0.5**0.5, 9)]),
        ("sphere", [0.05]),
        ("sphere", [0.05]),
    ]
    turn = np.array([[np.cos(1), -np.sin(1), 0], [np.sin(1), np.cos(1), 0], [0, 0, 1]])
    ends = [np.array([0, 0.5, 0]) + turn @ end for end in ([0, 0, 0], [0.3, 0.4, 0.5])]
    np.testing.assert_allclose(
        sorted([capsule[1].xyz.tolist(), capsule[2].xyz.tolist()]), sorted(end.tolist() for end in ends), atol=ROUNDED
    )
    assert {shape.mesh for shape in links["b"].shapes} == {"in/parts/block.stl"}
    assert all(shape.rgba == (0.1, 0.2, 0.3, 1.0) for link in links.values() for shape in link.shapes if shape.visual)


MESHES = coal.CachedMeshLoader()  # each file is read once
REAL = (
    "anymal_b_simple_description/robots/anymal.urdf",
    "talos_data/robots/talos_reduced.urdf",
    "z1_description/urdf/z1.urdf",
)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("format_name", ["urdf", "sdf"])
@pytest.mark.parametrize("role", [pinocchio.GeometryType.VISUAL, pinocchio.GeometryType.COLLISION])
def test_pinocchio_places_them_as_in_the_source(name: str, format_name: str, role: object, tmp_path: Path) -> None:
    """`buildGeomFromUrdf` of the source and of the file that comes back."""
    source, middle, back = path_of(name), tmp_path / f"r.{format_name}", tmp_path / "back.urdf"
    convert(source, middle)
    convert(middle, back)
    packages = next(folder for folder in source.parents if folder.name == "share")
    placements = []
    for file in (source, back):
        model = pinocchio.buildModelFromUrdf(str(file))
        geometry = pinocchio.buildGeomFromUrdf(model, str(file), role, package_dirs=[str(packages)], mesh_loader=MESHES)
        q = np.concatenate([_angle(joint, name) for joint, name in zip(model.joints, model.names, strict=True)][1:])
        data, places = model.createData(), geometry.createData()
        pinocchio.updateGeometryPlacements(model, data, geometry, places, q)
        objects = [
            (
                model.frames[geometry_object.parentFrame].name,
                Path(geometry_object.meshPath).name,
                geometry_object.meshScale.tolist(),
                M.homogeneous,
            )
            for geometry_object, M in zip(geometry.geometryObjects, places.oMg, strict=True)
        ]
        placements.append(sorted(objects, key=lambda geometry_object: geometry_object[0]))
    assert len(placements[0]) > 5
    for before_conversion, other in zip(*placements, strict=True):
        assert before_conversion[:3] == other[:3]
        np.testing.assert_allclose(other[3], before_conversion[3], atol=ROUNDED)


def _angle(joint: pinocchio.JointModel, name: str) -> np.ndarray:
    """The same for joints of the same name, except for additions by the conversion."""
    angle = np.sin(float(sum(name.removesuffix("_joint").encode())))
    return np.array([np.cos(angle), np.sin(angle)] if joint.nq == 2 else [angle] * joint.nq)


def test_paths_of_meshes(tmp_path: Path) -> None:
    """Relative paths hold from the new file's folder, URIs stay; MuJoCo gets files, or a note."""
    (tmp_path / "pack" / "in").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    trimesh.creation.box((1, 1, 1)).export(tmp_path / "pack" / "b.stl")
    source = tmp_path / "pack" / "in" / "r.urdf"
    addresses = ("../b.stl", "package://pack/b.stl", "package://none/b.stl", "../b.dae")
    visuals = "".join(f'<visual><geometry><mesh filename="{address}"/></geometry></visual>' for address in addresses)
    source.write_text(
        f'<robot name="r"><link name="a">{visuals}<collision><geometry><cone/></geometry></collision></link></robot>',
        "utf-8",
    )

    def converted(target: str) -> tuple[list[str], list[Note]]:
        notes = convert(source, tmp_path / "out" / target)
        return [shape.mesh for link in read_file(tmp_path / "out" / target).links for shape in link.shapes], notes

    for target in ("r.urdf", "r.sdf"):
        meshes, notes = converted(target)
        assert meshes == ["../pack/b.stl", *addresses[1:3], "../pack/b.dae"]
        (loss,) = [note.text for note in notes if "shape" in note.text]
        assert unnamed(loss, "shape", "box, cylinder, capsule, sphere, mesh") == []
    meshes, notes = converted("r.xml")
    assert meshes == ["../pack/b.stl", "../pack/b.stl"]
    assert [note.text for note in notes if "MuJoCo" in note.text or "such file" in note.text] == [
        f"a shape: the mesh {address}: there is no such file, expected .stl or .obj" for address in addresses[2:]
    ]
    assert mujoco.MjModel.from_xml_path(str(tmp_path / "out" / "r.xml")).ngeom == 2
    back = read_text(urdf_of(tmp_path / "out" / "r.xml")).links[1].shapes
    assert {shape.mesh for shape in back} == {(tmp_path / "pack" / "b.stl").as_uri()}


def test_frames_and_planes_of_sdf(tmp_path: Path) -> None:
    """A shape placed in another frame, and a plane with a normal of its own; MuJoCo has the pose by `zaxis`."""
    source = tmp_path / "r.sdf"
    source.write_text(
        """<sdf version="1.11"><model name="m"><link name="a"><pose>1 2 3 0.1 0.2 0.3</pose>
<visual name="v"><pose relative_to="f">0.1 0 0 0 0 0.5</pose><geometry><box><size>1 2 3</size></box></geometry></visual>
<collision name="c"><geometry><plane><normal>0 1 1</normal></plane></geometry></collision>
<visual name="h"><geometry><heightmap/></geometry></visual></link>
<frame name="f"><pose>0.5 0.6 0.7 0.3 0 0</pose></frame></model></sdf>""",
        "utf-8",
    )
    box, plane, unsupported = read_file(source).links[1].shapes
    se3, turn = pinocchio.SE3, pinocchio.rpy.rpyToMatrix
    link, frame = se3(turn(0.1, 0.2, 0.3), np.array([1.0, 2, 3])), se3(turn(0.3, 0.0, 0.0), np.array([0.5, 0.6, 0.7]))
    expected = link.inverse() * frame * se3(turn(0.0, 0.0, 0.5), np.array([0.1, 0, 0]))
    np.testing.assert_allclose(box.xyz, expected.translation, atol=ROUNDED)
    np.testing.assert_allclose(box.rotation, expected.rotation, atol=ROUNDED)
    np.testing.assert_allclose(plane.rotation[:, 2], np.array([0, 1, 1]) / np.sqrt(2), atol=ROUNDED)
    assert "its geometry is <heightmap>" in unsupported.unread


def test_only_who_names_folders_gets_shapes(source: Path) -> None:
    """MuJoCo as an engine of `simulate` gets bodies without geoms: it has contacts of its own."""
    assert "<geom" not in written(read_file(source), "mjcf")[0]
    assert os.path.isabs(source)
