"""Masses of SDFormat's meshes, against the closed form of a box; the files are made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trimesh

from dyn_service.errors import UrdfError
from dyn_service.parsing.files import read_file

MESH = "<mesh><uri>{uri}</uri><scale>1 2 1</scale>{more}</mesh>"
MODEL = """<sdf version="1.11"><model name="m"><link name="a"><inertial auto="true"><density>500</density></inertial>
<collision name="c"><pose>0.1 0.2 0.3 0 0 1.5707963267948966</pose><geometry>{mesh}</geometry></collision>
</link></model></sdf>"""


def robot_file(folder: Path, uri: str, elements: str = "") -> Path:
    (folder / "m" / "parts").mkdir(parents=True)
    trimesh.creation.box((0.25, 0.5, 0.75)).export(folder / "m" / "parts" / "box.stl")
    file = folder / "m" / "model.sdf"
    file.write_text(MODEL.format(mesh=MESH.format(uri=uri, more=elements)))
    return file


@pytest.mark.parametrize("uri", ["parts/box.stl", "file://parts/box.stl", "model://m/parts/box.stl"])
def test_a_scaled_and_turned_mesh_has_the_mass_of_its_box(tmp_path: Path, uri: str) -> None:
    inertial = read_file(robot_file(tmp_path, uri)).links[0].inertial
    assert inertial is not None
    mass, squares = 500.0 * 0.25 * 1.0 * 0.75, np.array([1.0, 0.25, 0.75]) ** 2  # turned by 90 degrees: x and y swap
    # The sides are exact in binary32; what remains is rounding of sums over twelve triangles.
    assert inertial.mass == pytest.approx(mass, rel=1e-14)
    np.testing.assert_allclose(inertial.com, (0.1, 0.2, 0.3), atol=1e-14)
    expected = np.diag(mass / 12.0 * (squares.sum() - squares))
    np.testing.assert_allclose(inertial.rotation @ inertial.inertia @ inertial.rotation.T, expected, atol=1e-13)


@pytest.mark.parametrize(
    ("uri", "elements", "text"),
    [
        ("parts/none.stl", "", "there is no file"),
        ("parts/box.dae", "", "expected a .stl or .obj file"),
        ("model://other/box.stl", "", "there is no model"),
        ("parts/box.stl", "<submesh><name>s</name></submesh>", "the mass of a <submesh> is not supported"),
    ],
)
def test_meshes_that_are_refused(tmp_path: Path, uri: str, elements: str, text: str) -> None:
    with pytest.raises(UrdfError, match=text):
        read_file(robot_file(tmp_path, uri, elements))
