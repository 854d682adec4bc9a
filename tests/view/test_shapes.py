"""What links look like: read from the file, and made where a file has nothing to show."""

from pathlib import Path

import numpy as np
import pytest

from dyn_service.model.description import Inertial
from dyn_service.parsing.files import read_file, read_text
from dyn_service.parsing.linter import Vertices
from dyn_service.parsing.shapes import mesh_file
from dyn_service.support.shipped import find_robot
from dyn_service.view.scene import PLAIN, ellipsoid, looks_of, meshes_of, placeholders, rod
from tests.phrases import unnamed

STL = """solid one
facet normal 0 0 1
outer loop
vertex 0 0 0
vertex 1 0 0
vertex 0 2 0
endloop
endfacet
endsolid one
"""
INERTIAL = """<inertial><origin xyz="0 0 0.2"/><mass value="2"/>
<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.02"/></inertial>"""
ROBOT = f"""<robot name="arm">
<material name="red"><color rgba="1 0 0 1"/></material>
<link name="base">{INERTIAL}
  <visual><origin xyz="1 2 3" rpy="0 0 1.5707963267948966"/><geometry><box size="1 2 3"/></geometry>
    <material name="red"/></visual>
  <visual><geometry><sphere radius="0.5"/></geometry><material name="own"><color rgba="0 0.5 2 1"/></material></visual>
  <collision><geometry><sphere radius="9"/></geometry></collision>
</link>
<link name="upper">{INERTIAL}<collision><geometry><cylinder radius="0.1" length="0.4"/></geometry></collision></link>
<link name="lower">{INERTIAL}
  <visual><geometry><mesh filename="package://arm_meshes/lower.stl" scale="1 2 0.001"/></geometry></visual></link>
<link name="hand">{INERTIAL}<visual><geometry><mesh filename="package://elsewhere/hand.dae"/></geometry></visual></link>
<link name="wrong">{INERTIAL}<visual><geometry><box size="1 two 3"/></geometry></visual></link>
<link name="bare">{INERTIAL}</link>
<joint name="a" type="revolute"><origin xyz="0 0 0.5"/><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
  <limit lower="-1" upper="1" effort="10" velocity="1"/></joint>
<joint name="b" type="continuous"><origin xyz="0 0 0.4"/><parent link="upper"/><child link="lower"/>
  <axis xyz="0 1 0"/></joint>
<joint name="c" type="fixed"><parent link="lower"/><child link="hand"/></joint>
<joint name="d" type="fixed"><origin xyz="0.3 0 0"/><parent link="hand"/><child link="wrong"/></joint>
<joint name="e" type="fixed"><parent link="wrong"/><child link="bare"/></joint>
</robot>"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The robot in a package next to the one with its mesh."""
    path = tmp_path / "arm_description" / "urdf" / "arm.urdf"
    path.parent.mkdir(parents=True)
    path.write_text(ROBOT, "utf-8")
    (tmp_path / "arm_meshes").mkdir()
    (tmp_path / "arm_meshes" / "lower.stl").write_text(STL, "utf-8")
    return path


def test_looks_are_those_of_the_file(file: Path) -> None:
    looks = looks_of(read_file(file), file.parent)
    box, sphere = looks.shapes["base"]
    assert (box.kind, box.size, box.colour, box.xyz.tolist()) == ("box", (1.0, 2.0, 3.0), (255, 0, 0), [1.0, 2.0, 3.0])
    np.testing.assert_allclose(box.rotation, [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-15)
    assert (sphere.kind, sphere.size, sphere.colour) == ("sphere", (0.5,), (0, 128, 255))  # 0.5 * 255, and cut at 1
    (cylinder,) = looks.shapes["upper"]  # of its collision, for it has no visual
    assert (cylinder.kind, cylinder.size, cylinder.colour) == ("cylinder", (0.1, 0.4), PLAIN)
    (mesh,) = looks.shapes["lower"]
    assert mesh.mesh == file.parents[2] / "arm_meshes" / "lower.stl"
    (read,) = meshes_of(mesh.mesh, mesh.size)
    assert read.colour is None
    assert sorted(map(tuple, read.vertices.tolist())) == [(0.0, 0.0, 0.0), (0.0, 4.0, 0.0), (1.0, 0.0, 0.0)]
    assert looks.with_shapes == {"base", "upper", "lower"}
    assert "bare" not in looks.shapes  # it has no looks, and none were lost


def test_what_cannot_be_shown_has_a_stand_in_and_is_said(file: Path) -> None:
    looks = looks_of(read_file(file), file.parent)
    assert [shape.kind for shape in looks.shapes["hand"]] == [
        "cylinder",
        "ellipsoid",
    ]  # to the joint it carries, its mass
    assert [shape.kind for shape in looks.shapes["wrong"]] == ["ellipsoid"]
    missing, malformed = looks.notes
    assert missing.startswith("link 'hand' is not shown as it is: the mesh package://elsewhere/hand.dae is not there")
    assert "link 'wrong'" in malformed
    assert unnamed(malformed, "3", "'1 two 3'") == []


def test_robots_without_looks_have_stand_ins() -> None:
    text = "<robot name='r'><link name='a'/><link name='b'/><joint name='j' type='fixed'><origin xyz='0 3 4'/>"
    description = read_text(text + "<parent link='a'/><child link='b'/></joint></robot>")
    assert {link: [shape.kind for shape in shapes] for link, shapes in placeholders(description).items()} == {
        "a": ["cylinder"]
    }
    looks = looks_of(description, Path())
    assert (looks.with_shapes, [shape.kind for shape in looks.shapes["a"]]) == (frozenset(), ["cylinder"])


def test_geoms_of_mjcf_are_shown(tmp_path: Path) -> None:
    mjcf = tmp_path / "one.xml"
    mjcf.write_text(
        "<mujoco><worldbody><body name='b'><geom size='0.5' mass='1' rgba='1 0 0 1'/><joint name='j'/>"
        "<geom type='capsule' size='0.1 0.5' group='3'/></body></worldbody></mujoco>"
    )
    looks = looks_of(read_file(mjcf), tmp_path)
    assert looks.notes == ()
    (sphere,) = looks.shapes["b"]
    assert (sphere.kind, sphere.size, sphere.colour) == ("sphere", (0.5,), (255, 0, 0))


@pytest.mark.parametrize("arm", [(0.0, 0.0, -2.0), (0.3, -0.4, 1.2), (1.0, 0.0, 0.0)])
def test_a_rod_goes_from_the_origin_to_the_joint(arm: tuple[float, float, float]) -> None:
    shape = rod(np.array(arm), 0.01)
    ends = [shape.xyz + shape.rotation @ np.array([0.0, 0.0, side * shape.size[1] / 2]) for side in (-1, 1)]
    np.testing.assert_allclose(ends, [np.zeros(3), arm], atol=1e-15)
    np.testing.assert_allclose(np.linalg.det(shape.rotation), 1.0, atol=1e-15)
    np.testing.assert_allclose(shape.rotation.T @ shape.rotation, np.eye(3), atol=1e-15)


def test_an_ellipsoid_has_the_inertia_of_its_link() -> None:
    """m/5 (b^2 + c^2) about its first axis, and so on, turned as the ellipsoid is, is the inertia again."""
    rng = np.random.default_rng(3)
    R, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    R *= np.linalg.det(R)
    semi = np.array([0.3, 0.2, 0.1])
    inertia = R @ np.diag(4.0 / 5.0 * (np.sum(semi**2) - semi**2)) @ R.T
    frame, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    frame *= np.linalg.det(frame)
    shape = ellipsoid(Inertial(4.0, np.array([1.0, 2.0, 3.0]), frame, inertia), largest=10.0)
    assert shape is not None
    assert sorted(shape.size) == pytest.approx([0.1, 0.2, 0.3])
    assert np.linalg.det(shape.rotation) == pytest.approx(1.0)
    size = np.array(shape.size)
    inertia_of_shape = shape.rotation @ np.diag(4.0 / 5.0 * (np.sum(size**2) - size**2)) @ shape.rotation.T
    np.testing.assert_allclose(inertia_of_shape, frame @ inertia @ frame.T, atol=1e-14)
    assert shape.xyz.tolist() == [1.0, 2.0, 3.0]


def test_inertias_of_no_body_have_an_ellipsoid_too() -> None:
    shape = ellipsoid(Inertial(1.0, np.zeros(3), np.eye(3), np.diag([1.0, 1.0, 9.0])), largest=0.8)
    assert shape is not None
    assert min(shape.size) > 0.0
    assert max(shape.size) <= 0.4
    assert ellipsoid(Inertial(1.0, np.zeros(3), np.eye(3), np.zeros((3, 3))), largest=0.8) is None


def test_a_mesh_that_cannot_be_read_is_said_and_has_a_stand_in(file: Path) -> None:
    """A pointer of Git LFS, as a clone without it leaves: it was nothing to be seen, and no word of it."""
    mesh = file.parents[2] / "arm_meshes" / "lower.stl"
    mesh.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "utf-8")
    looks = looks_of(read_file(file), file.parent)
    assert [shape.kind for shape in looks.shapes["lower"]] == ["ellipsoid"]
    assert (
        "link 'lower' is not shown as it is: the mesh package://arm_meshes/lower.stl cannot be read, or has more than "
        "64 MB" in looks.notes
    )


def test_where_meshes_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robot_folder = tmp_path / "work" / "robot"
    places = {
        "meshes/a.stl": robot_folder / "meshes" / "a.stl",
        "package://robot/b.STL": robot_folder / "b.STL",
        "package://there/c%20d.obj": tmp_path / "ros" / "there" / "c d.obj",
        "package://shared/e.dae": tmp_path / "ament" / "share" / "shared" / "e.dae",
        f"file://{tmp_path}/f.ply": tmp_path / "f.ply",
    }
    monkeypatch.setenv("ROS_PACKAGE_PATH", str(tmp_path / "ros"))
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path / "ament"))
    for path in places.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mesh")
    for address, path in places.items():
        assert mesh_file(address, robot_folder) == path
    (robot_folder / "passwd").write_text("no mesh")
    for address in (
        "https://example.org/a.stl",
        "meshes/none.stl",
        "passwd",
        "package://nowhere/a.stl",
        "",
        "http://[a.stl",
        f"{300 * 'a'}.stl",
        "package:///a.stl",
    ):
        assert mesh_file(address, robot_folder) is None


def test_files_that_are_no_meshes_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "a.stl").write_text("nothing of the kind")
    assert not meshes_of(tmp_path / "a.stl")
    assert not meshes_of(tmp_path / "b.stl")


COLLADA = """<?xml version="1.0"?>
<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
<asset><unit name="meter" meter="1"/><up_axis>Z_UP</up_axis></asset>
<library_effects>{effects}</library_effects><library_materials>{materials}</library_materials>
<library_geometries><geometry id="g"><mesh>
<source id="p"><float_array id="a" count="9">0 0 0 1 0 0 0 2 0</float_array><technique_common>
<accessor source="#a" count="3" stride="3"><param name="X" type="float"/><param name="Y" type="float"/>
<param name="Z" type="float"/></accessor></technique_common></source>
<vertices id="v"><input semantic="POSITION" source="#p"/></vertices>{triangles}</mesh></geometry></library_geometries>
<library_visual_scenes><visual_scene id="s"><node id="n"><translate>0 0 3</translate><instance_geometry url="#g">
<bind_material><technique_common>{bound}</technique_common></bind_material></instance_geometry></node>
</visual_scene></library_visual_scenes><scene><instance_visual_scene url="#s"/></scene></COLLADA>"""


def test_a_collada_file_is_read_where_its_tree_has_it_and_in_its_colours(tmp_path: Path) -> None:
    """As the links of most robots of ROS are: a mesh for each material, moved by the file's own nodes."""
    colours = {"red": (1.0, 0.0, 0.0), "dark": (0.2, 0.2, 0.2)}
    parts = {
        "effects": '<effect id="{0}e"><profile_COMMON><technique sid="c"><lambert><diffuse><color>{1} {2} {3} 1</color>'
        "</diffuse></lambert></technique></profile_COMMON></effect>",
        "materials": '<material id="{0}m"><instance_effect url="#{0}e"/></material>',
        "triangles": '<triangles count="1" material="{0}"><input semantic="VERTEX" source="#v" offset="0"/><p>0 1 2</p>'
        "</triangles>",
        "bound": '<instance_material symbol="{0}" target="#{0}m"/>',
    }
    file = tmp_path / "link.dae"
    texts = {key: "".join(text.format(name, *rgb) for name, rgb in colours.items()) for key, text in parts.items()}
    file.write_text(COLLADA.format(**texts), "utf-8")
    meshes = meshes_of(file, (1.0, 1.0, 2.0))
    assert sorted(mesh.colour for mesh in meshes) == [(51, 51, 51), (255, 0, 0)]
    for mesh in meshes:
        assert sorted(map(tuple, mesh.vertices.tolist())) == [(0.0, 0.0, 6.0), (0.0, 2.0, 6.0), (1.0, 0.0, 6.0)]


def test_a_collada_file_in_centimetres(tmp_path: Path) -> None:
    """In metres and in the file's axes, as RViz and Gazebo show it, to `dyn view` and to the checks of inertias."""
    triangles = '<triangles count="1"><input semantic="VERTEX" source="#v" offset="0"/><p>0 1 2</p></triangles>'
    text = COLLADA.format(effects="", materials="", triangles=triangles, bound="")
    text = text.replace('name="meter" meter="1"', 'meter="0.01" name="centimeter"').replace("Z_UP", "Y_UP")
    (tmp_path / "link.dae").write_text(text, "utf-8")
    (mesh,) = meshes_of(tmp_path / "link.dae")
    expected = np.array([(0.0, 0.0, 0.03), (0.0, 0.02, 0.03), (0.01, 0.0, 0.03)])
    for vertices in (mesh.vertices, Vertices().read(tmp_path / "link.dae")):
        np.testing.assert_allclose(sorted(map(tuple, np.asarray(vertices).tolist())), expected, rtol=1e-7)  # float32


@pytest.mark.parametrize("name", ["panda", "ur5e", "solo12", "upper_body", "scara"])
def test_shipped_robots_have_looks(name: str) -> None:
    file = find_robot(name)
    looks = looks_of(read_file(file), file.parent)
    assert looks.with_shapes
    assert not looks.notes
