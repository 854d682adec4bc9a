"""Masses of MJCF's meshes and thin ellipsoids, against MuJoCo's own compiler; the files are made here."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
import trimesh

from dyn_service import Robot
from dyn_service.errors import UrdfError
from dyn_service.model.description import Description
from dyn_service.parsing import files as reading
from dyn_service.support.optional import MissingLibraryError
from tests.phrases import naming

HEAD = '<compiler meshdir="parts"/><asset><mesh name="m" file="m.{ending}" {mesh}/></asset>'
BODY = '<worldbody><body name="b"><joint/><geom type="mesh" mesh="m" {geom}/></body></worldbody>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With parts/m.stl and parts/m.obj: two boxes that overlap, so that each way of reckoning has another result."""
    first, second = trimesh.creation.box((0.2, 0.3, 0.5)), trimesh.creation.box((0.3, 0.1, 0.4))
    first.apply_translation((0.1, 0.05, 0.02))
    second.apply_translation((0.25, -0.1, 0.1))
    whole = trimesh.util.concatenate([first, second])
    (tmp_path / "parts").mkdir()
    for ending in ("stl", "obj"):
        whole.export(tmp_path / "parts" / f"m.{ending}")
    return tmp_path


def robot_file(folder: Path, mesh: str = "", geom: str = "", ending: str = "stl", head: str = HEAD) -> Path:
    file = folder / "robot.xml"
    file.write_text(f'<mujoco model="m">{head.format(ending=ending, mesh=mesh)}{BODY.format(geom=geom)}</mujoco>')
    return file


def compare(description: Description, file: Path) -> None:
    model = mujoco.MjModel.from_xml_path(str(file))
    inertial = next(link.inertial for link in description.links if link.name == "b")
    assert inertial is not None
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, model.body_iquat[1])
    R = turn.reshape(3, 3)
    # Its principal moments are good to rounding, its axes to 1e-7: the iteration that finds them stops there.
    expected = R @ np.diag(model.body_inertia[1]) @ R.T
    assert inertial.mass == pytest.approx(model.body_mass[1], rel=1e-10)
    np.testing.assert_allclose(inertial.com, model.body_ipos[1], atol=1e-12)
    np.testing.assert_allclose(
        inertial.rotation @ inertial.inertia @ inertial.rotation.T, expected, atol=1e-7 * expected.max()
    )
    np.testing.assert_allclose(np.linalg.eigvalsh(inertial.inertia), np.sort(model.body_inertia[1]), rtol=1e-10)


@pytest.mark.parametrize("ending", ["stl", "obj"])
@pytest.mark.parametrize("mode", ["", 'inertia="legacy"', 'inertia="exact"', 'inertia="convex"', 'inertia="shell"'])
def test_every_way_of_reckoning(folder: Path, mode: str, ending: str) -> None:
    file = robot_file(folder, mode, 'density="500" pos="0.1 0.2 0.3" quat="1 2 0 -1"', ending)
    compare(reading.read_file(file), file)


@pytest.mark.parametrize(
    "mesh",
    ['scale="1 2 3"', 'scale="1 2 -1"', 'refpos="0.1 0.2 -0.1"', 'refquat="1 0 2 1"',
     'scale="0.5 1 2" refpos="0.1 0 0.3" refquat="1 0 2 1" inertia="convex"',
     'scale="0.5 1 2" refpos="0.1 0 0.3" refquat="1 0 2 1" inertia="shell"'],
)  # fmt: skip
def test_scale_and_reference_frame(folder: Path, mesh: str) -> None:
    file = robot_file(folder, mesh, 'mass="2.5"')
    compare(reading.read_file(file), file)


def test_classes_names_and_asset_folders(folder: Path) -> None:
    head = '<compiler assetdir="parts"/><default><mesh scale="2 2 2"/></default><asset><mesh file="m.stl"/></asset>'
    file = robot_file(folder, head=head)
    compare(reading.read_file(file), file)


def test_a_thin_ellipsoid(tmp_path: Path) -> None:
    file = tmp_path / "robot.xml"
    shape = '<geom type="ellipsoid" size="0.1 0.25 0.4" shellinertia="true" density="3"/>'
    file.write_text(f'<mujoco model="m"><worldbody><body name="b"><joint/>{shape}</body></worldbody></mujoco>')
    compare(reading.read_file(file), file)


STILL = """<mujoco><asset>{asset}</asset><worldbody><body name="b"><geom type="mesh" mesh="m"/><body name="arm">
<joint axis="0 1 0"/><inertial pos=".1 0 0" mass="0.5" diaginertia="1e-3 1e-3 1e-3"/></body></body></worldbody>
</mujoco>"""


def test_a_body_that_does_not_move(folder: Path) -> None:
    """The load of the joint that carries it depends on its mass."""
    file = folder / "robot.xml"
    file.write_text(STILL.format(asset='<mesh name="m" file="parts/m.stl"/>'))
    compare(reading.read_file(file), file)
    robot = Robot.from_file(file)
    load = robot.constraint_forces([0.0], [0.0], robot.gravity_forces([0.0]))
    weight = mujoco.MjModel.from_xml_path(str(file)).body_mass.sum() * 9.81
    assert load.wrench[load.joints.index("b_fixed"), 5] == pytest.approx(weight, rel=1e-9)


@pytest.mark.parametrize(
    ("asset", "cause"), [("", "no mesh 'm' in <asset>"), ('<mesh name="m" file="gone.stl"/>', "no file 'gone.stl'")]
)
def test_an_unread_mesh_of_a_body_that_does_not_move(
    folder: Path, asset: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = folder / "robot.xml"
    file.write_text(STILL.format(asset=asset))
    robot = Robot.from_file(file)
    (note,) = (note for note in robot.receipt.of_kind("changed") if note.element == "link 'b' geom")
    assert cause in note.text
    assert note.text in caplog.text
    assert robot.tree.inertia[robot.tree.links.index("b")].mass == 0.0


@pytest.mark.parametrize(
    ("mesh", "cause"),
    [
        ("nowhere.stl", "there is no file 'nowhere.stl' in the mesh folder"),
        ("https://example.org/m.stl", "the mesh 'https://example.org/m.stl': expected a .stl or .obj file"),
        ("m.dae", "the mesh 'm.dae': expected a .stl or .obj file"),
        ("broken.stl", "the mesh has no volume"),
        ("broken.obj", "the mesh 'broken.obj' cannot be read"),
        ("flat.obj", "the mesh has no volume"),
    ],
)
def test_meshes_that_cannot_be_weighed(folder: Path, mesh: str, cause: str) -> None:
    (folder / "parts/broken.stl").write_bytes(b"solid nothing")
    (folder / "parts/broken.obj").write_text("v 0 0 0\nf 1 2 3\n")
    (folder / "parts/flat.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    head = f'<compiler meshdir="parts"/><asset>\n<mesh name="m" file="{mesh}" inertia="exact"/></asset>'
    with pytest.raises(UrdfError) as excinfo:
        reading.read_file(robot_file(folder, head=head))
    assert cause in str(excinfo.value)
    assert (excinfo.value.line, excinfo.value.element) == (2, "mesh 'm'")


@pytest.mark.parametrize("mode", ["legacy", "shell", "exact", "convex"])
def test_faces_of_many_corners(folder: Path, mode: str) -> None:
    """How they are divided changes sums of areas and of volumes without sign: MuJoCo's way is not known here."""
    square = "v 0 0 0\nv 2 0 0\nv 2 2 0\nv 1 1 0\nv 0 2 0\nv 1 1 3\n"
    sides = "\n".join(f"f {k} {k % 5 + 1} 6" for k in range(1, 6))
    (folder / "parts/five.obj").write_text(f"{square}f 5 4 3 2 1\n{sides}\n")
    head = f'<compiler meshdir="parts"/><asset><mesh name="m" file="five.obj" inertia="{mode}"/></asset>'
    file = robot_file(folder, head=head)
    if mode in ("legacy", "shell"):
        with pytest.raises(UrdfError, match="more than four corners"):
            reading.read_file(file)
    else:
        compare(reading.read_file(file), file)


@pytest.mark.parametrize("place", ["parts", "sub"])
def test_meshes_of_an_included_file(folder: Path, place: str) -> None:
    """MuJoCo looks in `meshdir` of the main file, then next to the file that names the mesh."""
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "parts" / "m.stl").rename(folder / place / "m.stl")
    asset = '<asset><mesh name="m" file="m.stl"/></asset>'
    (folder / "sub" / "assets.xml").write_text(f"<mujocoinclude>{asset}</mujocoinclude>")
    file = robot_file(folder, head='<compiler meshdir="parts"/><include file="sub/assets.xml"/>')
    compare(reading.read_file(file), file)


def test_text_opens_no_mesh(folder: Path) -> None:
    with pytest.raises(UrdfError, match="not from text"):
        reading.read_text(robot_file(folder).read_text())


def test_without_the_library_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dyn_service.support.optional.find_spec", lambda module: None)
    with pytest.raises(MissingLibraryError, match=naming("'trimesh'", "dyn_service[view]")):
        reading.read_file(robot_file(folder))
