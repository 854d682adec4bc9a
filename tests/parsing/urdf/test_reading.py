"""What is read from good robots: every number, every default and its note, what is dropped, and odd but legal text."""

from __future__ import annotations

import builtins
import importlib.metadata
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

from dyn_service.errors import UrdfError
from dyn_service.model.description import Description, Inertial, Joint, Limit, Mimic, Note
from dyn_service.parsing.urdf.reader import read, read_text
from tests.phrases import unnamed

ARM = """<?xml version="1.0" encoding="utf-8"?>
<robot name="arm" xmlns:xacro="http://www.ros.org/wiki/xacro">
  <link name="base"/>
  <link name="upper">
    <inertial>
      <origin xyz="0.1 0 -.2" rpy="0 0 1.5707963267948966"/>
      <mass value="2.5"/>
      <inertia ixx="1" ixy="0" ixz="0" iyy="2" iyz="0" izz="2.5"/>
    </inertial>
  </link>
  <link name="slide">
    <inertial>
      <origin/>
      <mass value="+1E0"/>
      <inertia ixx="0.02" ixy="0.001" ixz="0.002" iyy="0.03" iyz="-0.003" izz="0.04"/>
    </inertial>
  </link>
  <link name="tool"/>
  <joint name="shoulder" type="revolute">
    <parent link="base"/>
    <child link="upper"/>
    <origin xyz="0 0 0.5" rpy="0 -1.5707963267948966 0"/>
    <axis xyz="0 0 -1"/>
    <limit lower="-1.5" upper="1.5" effort="80" velocity="2"/>
    <dynamics damping="0.7" friction="0.3"/>
  </joint>
  <joint name="lift" type="prismatic">
    <parent link="upper"/>
    <child link="slide"/>
    <origin rpy="0.1 0.2 0.3"/>
    <axis xyz="0 1 0"/>
    <limit lower="0" upper="0.4"/>
  </joint>
  <joint name="flange" type="fixed">
    <parent link="slide"/>
    <child link="tool"/>
    <origin xyz="0 0 1"/>
    <axis xyz="0 0 0"/>
  </joint>
</robot>
"""

INERTIA = '<inertia ixx="0.02" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.02"/>'


def two_links(joint: str = "", kind: str = "revolute", inertial: str = "", attributes: str = "") -> Description:
    """Links base and arm; the joint j begins on line 7, its further content on line 10."""
    content = inertial or f'<inertial><origin/><mass value="1"/>{INERTIA}</inertial>'
    return read_text(f"""<robot name="r" {attributes}>
<link name="base"/>
<link name="arm">
{content}
</link>

<joint name="j" type="{kind}">
<parent link="base"/>
<child link="arm"/>
{joint}
</joint>
</robot>""")


PLAIN = '<origin/><axis xyz="1 0 0"/><limit lower="-1" upper="1"/>'


def only_joint(robot: Description) -> Joint:
    (joint,) = robot.joints
    return joint


def inertial_of(robot: Description, link: str) -> Inertial:
    (inertial,) = (candidate.inertial for candidate in robot.links if candidate.name == link)
    assert inertial is not None
    return inertial


class TestAsWritten:
    """A robot with nothing to remark: every number arrives."""

    def test_robot(self) -> None:
        robot = read(ARM)
        assert (robot.name, robot.source, robot.notes) == ("arm", "<text>", ())
        assert [(link.name, link.line) for link in robot.links] == [
            ("base", 3),
            ("upper", 4),
            ("slide", 11),
            ("tool", 18),
        ]
        assert [(joint.name, joint.type, joint.parent, joint.child, joint.line) for joint in robot.joints] == [
            ("shoulder", "revolute", "base", "upper", 19),
            ("lift", "prismatic", "upper", "slide", 27),
            ("flange", "fixed", "slide", "tool", 34),
        ]

    def test_joints(self) -> None:
        shoulder, lift, flange = read(ARM).joints
        assert shoulder.xyz.tolist() == [0, 0, 0.5]
        assert shoulder.axis.tolist() == [0, 0, -1]
        assert shoulder.limit == Limit(-1.5, 1.5, 80.0, 2.0)
        assert (shoulder.damping, shoulder.friction, shoulder.mimic) == (0.7, 0.3, None)
        assert lift.xyz.tolist() == [0, 0, 0]
        assert lift.axis.tolist() == [0, 1, 0]
        assert lift.limit == Limit(0.0, 0.4, None, None)
        assert (lift.damping, lift.friction) == (0, 0)
        # The axis of a fixed joint means nothing; exporters write zero.
        assert flange.axis.tolist() == [1, 0, 0]
        assert flange.limit is None
        assert flange.xyz.tolist() == [0, 0, 1]

    def test_inertials(self) -> None:
        robot = read(ARM)
        assert robot.links[0].inertial is None
        slide = inertial_of(robot, "slide")
        assert slide.mass == 1
        assert slide.com.tolist() == [0, 0, 0]
        assert slide.rotation.tolist() == np.eye(3).tolist()
        assert slide.inertia.tolist() == [[0.02, 0.001, 0.002], [0.001, 0.03, -0.003], [0.002, -0.003, 0.04]]
        upper = inertial_of(robot, "upper")
        assert upper.mass == 2.5
        assert upper.com.tolist() == [0.1, 0, -0.2]

    def test_turned_inertia(self) -> None:
        """diag(1, 2, 2.5) in axes turned by 90 degrees about z is diag(2, 1, 2.5) in the link's."""
        upper = inertial_of(read(ARM), "upper")
        assert np.array_equal(upper.inertia, np.diag([1, 2, 2.5]))
        assert np.array_equal(upper.rotation @ upper.inertia @ upper.rotation.T, np.diag([2, 1, 2.5]))

    def test_arrays_hold_no_negative_zero(self) -> None:
        robot = two_links('<origin xyz="-0 0 0" rpy="0 3.141592653589793 0"/><axis xyz="-0 -0 -2"/><limit/>')
        joint = only_joint(robot)
        for values in (joint.xyz, joint.rotation, joint.axis):
            assert not np.signbit(values[values == 0]).any()


class TestSources:
    """The same robot from text, bytes and files in every wrapping that occurs."""

    @pytest.mark.parametrize(
        ("wrap", "shift"),
        [
            (lambda text: "\ufeff" + text, 0),
            (lambda text: "\n\n " + text, 2),
            (lambda text: "\n\ufeff" + text, 1),
            (lambda text: text.encode(), 0),
            (lambda text: b"\xef\xbb\xbf" + text.encode(), 0),
            (lambda text: text.replace("\n", "\r\n"), 0),
            (lambda text: text.replace("utf-8", "iso-8859-1"), 0),
            (lambda text: text.replace("<link", "<!-- <link/> ${x} -->\n<?ignore this?><link", 1), 1),
        ],
        ids=[
            "mark",
            "blank lines",
            "mark after a blank line",
            "bytes",
            "marked bytes",
            "crlf",
            "other encoding named",
            "comment",
        ],
    )
    def test_wrappings(self, wrap, shift) -> None:  # type: ignore[no-untyped-def]
        robot = read(wrap(ARM))
        assert [link.line for link in robot.links] == [line + shift for line in (3, 4, 11, 18)]
        assert inertial_of(robot, "upper").mass == 2.5

    def test_file(self, tmp_path: Path) -> None:
        path = tmp_path / "my arm.urdf"
        path.write_text(ARM)
        for source in (path, str(path)):
            robot = read(source)
            assert (robot.name, robot.source, len(robot.links)) == ("arm", str(path), 4)

    def test_names_keep_their_letters(self) -> None:
        robot = read_text('<robot name="Käfer &amp; Co"><link name="\u8155 1"/></robot>'.encode())
        assert (robot.name, robot.links[0].name) == ("Käfer & Co", "\u8155 1")

    def test_nothing_but_the_text_is_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            pytest.fail("a file was opened")

        mesh = '<mesh filename="package://arm/base.stl"/>'
        shape = f"<visual><geometry>{mesh}</geometry></visual><collision><geometry>{mesh}</geometry></collision>"
        text = ARM.replace('<link name="tool"/>', f'<link name="tool">{shape}</link>')
        monkeypatch.setattr(builtins, "open", refuse)
        monkeypatch.setattr(Path, "open", refuse)
        monkeypatch.setattr("os.stat", refuse)
        robot = read(text)
        monkeypatch.undo()
        assert robot.notes == (Note("dropped", "robot 'arm'", "geometry of 1 link is not used in dynamics", 2),)

    def test_order_of_elements_does_not_matter(self) -> None:
        joints = re.findall(r"  <joint.*?</joint>\n", ARM, re.DOTALL)
        text = ARM
        for joint in joints:
            text = text.replace(joint, "")
        text = text.replace("  <link", "".join(joints) + "  <link", 1)
        assert [joint.name for joint in read(text).joints] == ["shoulder", "lift", "flange"]


def turn(axis: int, angle: float) -> np.ndarray:
    """The rotation about a coordinate axis, from its definition."""
    i, j = (axis + 1) % 3, (axis + 2) % 3
    matrix = np.eye(3)
    matrix[i, i] = matrix[j, j] = math.cos(angle)
    matrix[j, i], matrix[i, j] = math.sin(angle), -math.sin(angle)
    return matrix


def rotation_of(origin: str, attributes: str = "") -> np.ndarray:
    return only_joint(two_links(f"<origin {origin}/>{PLAIN.removeprefix('<origin/>')}", attributes=attributes)).rotation


class TestRotations:
    """rpy turns about fixed axes: R = Rz(yaw) Ry(pitch) Rx(roll)."""

    @pytest.mark.parametrize("rpy", [(0.1, 0.2, 0.3), (-2.0, 1.5, 0.7), (3.0, -1.2, -2.5), (100.0, 0.0, -7.0)])
    def test_product_of_turns(self, rpy: tuple[float, float, float]) -> None:
        expected = turn(2, rpy[2]) @ turn(1, rpy[1]) @ turn(0, rpy[0])
        # A product of three rotations of sines and cosines: a few roundings of numbers up to one.
        assert np.abs(rotation_of(f'rpy="{rpy[0]} {rpy[1]} {rpy[2]}"') - expected).max() < 4e-16

    @pytest.mark.parametrize("quarters", list(itertools.product((-1, 0, 1, 2), repeat=3)))
    def test_quarter_turns_are_exact(self, quarters: tuple[int, int, int]) -> None:
        rotation = rotation_of('rpy="{} {} {}"'.format(*(quarter * math.pi / 2 for quarter in quarters)))
        assert set(np.unique(rotation)) <= {-1.0, 0.0, 1.0}
        assert np.array_equal(rotation @ rotation.T, np.eye(3))
        assert np.linalg.det(rotation) > 0
        expected = turn(2, quarters[2] * math.pi / 2) @ turn(1, quarters[1] * math.pi / 2)
        assert np.allclose(rotation, expected @ turn(0, quarters[0] * math.pi / 2), atol=1e-15)

    def test_angles_that_only_look_like_quarters_are_kept(self) -> None:
        assert rotation_of('rpy="1.5708 0 0"')[1, 1] == math.cos(1.5708) != 0

    def test_quaternion(self) -> None:
        root = math.sqrt(0.5)
        quarter = rotation_of(f'quat_xyzw="0 0 {root} {root}"', 'version="1.1"')
        assert np.allclose(quarter, turn(2, math.pi / 2), atol=1e-15)
        roll, yaw = 0.4, -0.9
        sr, cr, sy, cy = math.sin(roll / 2), math.cos(roll / 2), math.sin(yaw / 2), math.cos(yaw / 2)
        combined = rotation_of(f'quat_xyzw="{cy * sr} {sy * sr} {sy * cr} {cy * cr}"', 'version="1.2"')
        assert np.allclose(combined, turn(2, yaw) @ turn(0, roll), atol=1e-15)

    def test_quaternion_of_other_length(self) -> None:
        robot = two_links(
            '<origin quat_xyzw="0 0 0 2"/><axis xyz="1 0 0"/><limit lower="0" upper="1"/>', attributes='version="1.1"'
        )
        assert np.array_equal(only_joint(robot).rotation, np.eye(3))
        assert robot.notes == (Note("changed", "joint 'j' origin", "quaternion of length 2; normalized", 10),)


class TestAxes:
    """Axes leave the reader at unit length; that they had another is noted."""

    def axis(self, xyz: str) -> tuple[list[float], tuple[Note, ...]]:
        robot = two_links(f'<origin/><axis xyz="{xyz}"/><limit lower="-1" upper="1"/>')
        return only_joint(robot).axis.tolist(), robot.notes

    def test_other_length(self) -> None:
        note = Note("changed", "joint 'j' axis", "(0, 3, 4) has length 5; normalized", 10)
        assert self.axis("0 3 4") == ([0, 0.6, 0.8], (note,))

    def test_reversed_is_kept(self) -> None:
        assert self.axis("-1 0 0") == ([-1, 0, 0], ())

    def test_rounded_to_seven_digits_is_no_news(self) -> None:
        axis, notes = self.axis("0.7071068 0 0.7071068")
        assert notes == ()
        assert np.allclose(axis, [math.sqrt(0.5), 0, math.sqrt(0.5)], atol=1e-16)

    @pytest.mark.parametrize("scale", ["1e-8", "1.7e308"])
    def test_extreme_lengths(self, scale: str) -> None:
        axis, notes = self.axis(f"{scale} {scale} 0")
        assert np.allclose(axis, [math.sqrt(0.5), math.sqrt(0.5), 0], atol=1e-16)
        assert len(notes) == 1


def notes(robot: Description) -> list[tuple[str, str, str, int]]:
    return [(note.kind, note.element, note.text, note.line) for note in robot.notes]


class TestDefaults:
    """What URDF leaves out is taken from its defaults, and noted."""

    def test_no_axis(self) -> None:
        robot = two_links('<origin/><limit lower="0" upper="1"/>')
        assert only_joint(robot).axis.tolist() == [1, 0, 0]
        assert notes(robot) == [("defaulted", "joint 'j'", "no <axis>: the x axis (1, 0, 0) is used", 7)]

    def test_no_axis_of_a_fixed_joint_is_no_news(self) -> None:
        assert two_links("<origin/>", "fixed").notes == ()

    def test_no_joint_origin(self) -> None:
        robot = two_links('<axis xyz="1 0 0"/><limit lower="0" upper="1"/>')
        assert only_joint(robot).xyz.tolist() == [0, 0, 0]
        assert np.array_equal(only_joint(robot).rotation, np.eye(3))
        assert notes(robot) == [
            ("defaulted", "joint 'j'", "no <origin>: the child link's frame is the parent link's", 7)
        ]

    def test_no_inertial_origin(self) -> None:
        robot = two_links(PLAIN, inertial=f'<inertial><mass value="1"/>{INERTIA}</inertial>')
        text = "no <origin>: the centre of mass is the link's origin"
        assert notes(robot) == [("defaulted", "link 'arm' inertial", text, 4)]

    def test_no_inertia(self) -> None:
        robot = two_links(PLAIN, inertial='<inertial><origin/><mass value="2"/></inertial>')
        np.testing.assert_array_equal(inertial_of(robot, "arm").inertia, np.zeros((3, 3)))
        assert inertial_of(robot, "arm").mass == 2
        assert notes(robot) == [
            ("defaulted", "link 'arm' inertial", "no <inertia>: zero is used", 4),
            ("warning", "link 'arm'", "mass 2 kg and no inertia: a point mass", 3),
        ]

    @pytest.mark.parametrize("kind", ["revolute", "prismatic"])
    def test_no_limit(self, kind: str) -> None:
        robot = two_links('<origin/><axis xyz="1 0 0"/>', kind)
        assert only_joint(robot).limit is None
        text = "no <limit>, which URDF requires: the joint is unlimited"
        assert notes(robot) == [("defaulted", "joint 'j'", text, 7)]

    def test_no_limit_of_a_continuous_joint_is_no_news(self) -> None:
        assert two_links('<origin/><axis xyz="1 0 0"/>', "continuous").notes == ()

    @pytest.mark.parametrize(
        ("limit", "missing"), [("", "lower and no upper"), ('lower="0"', "upper"), ('upper="0"', "lower")]
    )
    def test_limit_without_bounds(self, limit: str, missing: str) -> None:
        robot = two_links(f'<origin/><axis xyz="1 0 0"/><limit {limit}/>')
        assert notes(robot) == [("defaulted", "joint 'j'", f"the <limit> has no {missing}: unlimited there", 7)]

    def test_origin_with_one_half(self) -> None:
        joint = only_joint(two_links('<origin rpy="0 0 0.5"/><axis xyz="1 0 0"/><limit lower="0" upper="1"/>'))
        assert joint.xyz.tolist() == [0, 0, 0]
        assert np.allclose(joint.rotation, turn(2, 0.5), atol=1e-16)


class TestMimic:
    CHAIN = """<robot name="r"><link name="a"/><link name="b"/><link name="c"/>
<joint name="lead" type="{kind}"><parent link="a"/><child link="b"/></joint>
<joint name="follow" type="continuous"><parent link="b"/><child link="c"/>
<mimic joint="lead" {numbers}/></joint></robot>"""

    def test_is_read(self) -> None:
        """What becomes of it is in test_mimic.py."""
        robot = read(self.CHAIN.format(kind="continuous", numbers='multiplier="-2" offset="0.5"'))
        assert robot.joints[1].mimic == Mimic("lead", -2.0, 0.5)

    def test_defaults(self) -> None:
        assert read(self.CHAIN.format(kind="continuous", numbers="")).joints[1].mimic == Mimic("lead", 1.0, 0.0)

    def test_of_a_fixed_joint_is_doubted(self) -> None:
        robot = read(self.CHAIN.format(kind="fixed", numbers=""))
        assert ("warning", "joint 'follow'", "mimics joint 'lead', which is fixed: the mimic is ignored", 3) in notes(
            robot
        )


class TestDropped:
    """What dynamics does not use is counted, one note per kind, on the line of the first."""

    def test_geometry_is_one_note(self) -> None:
        shape = "<visual><origin/><geometry><box/></geometry></visual><visual/><collision/>"
        text = f'<robot name="r"><link name="a">{shape}</link><link name="b">{shape}</link><material name="m"/></robot>'
        with pytest.raises(UrdfError):
            read(text)  # Two roots: geometry does not hide that.
        joint = '<joint name="j" type="fixed"><origin/><parent link="a"/><child link="b"/></joint></robot>'
        robot = read(text.replace("</robot>", joint))
        assert notes(robot) == [("dropped", "robot 'r'", "geometry of 2 links is not used in dynamics", 1)]

    def test_materials_alone(self) -> None:
        robot = read('<robot name="r"><link name="a"/><material name="m"/></robot>')
        assert notes(robot) == [("dropped", "robot 'r'", "1 <material> element in <robot> is not used", 1)]

    def test_extensions(self) -> None:
        robot = read_text(
            '<robot name="r"><link name="a"><contact/></link><link name="b"/>\n'
            '<joint name="j" type="fixed"><origin/><parent link="a"/><child link="b"/>\n'
            '<safety_controller k_velocity="1"/><calibration rising="0"/></joint>\n'
            '<gazebo><plugin name="p"><joint name="no joint"/><xyz>${x}</xyz></plugin></gazebo>\n'
            '<gazebo/><drake:transmission name="no joint"/></robot>'
        )
        assert len(robot.joints) == 1
        assert notes(robot) == [
            ("dropped", "robot 'r'", "2 <gazebo> elements in <robot> are not used", 4),
            ("dropped", "robot 'r'", "1 <drake:transmission> element in <robot> is not used", 5),
            ("dropped", "robot 'r'", "1 <contact> element in <link> is not used", 1),
            ("dropped", "robot 'r'", "1 <safety_controller> element in <joint> is not used", 3),
            ("dropped", "robot 'r'", "1 <calibration> element in <joint> is not used", 3),
        ]

    def test_attributes(self) -> None:
        """A misspelt attribute is warning; another engine's is dropped."""
        robot = two_links(
            '<origin xzy="0 0 1"/>\n<axis xyz="1 0 0" rpy="0 0 0"/><limit lower="0" upper="1" lowest="0"/>'
            '<dynamics damp="2" armature="3"/>'
        )
        assert notes(robot) == [
            ("warning", "robot 'r'", "1 attribute 'xzy' of <origin> is not used; did you mean 'xyz'?", 10),
            ("dropped", "robot 'r'", "1 attribute 'rpy' of <axis> is not used", 11),
            # What is given as well cannot have been meant.
            ("dropped", "robot 'r'", "1 attribute 'lowest' of <limit> is not used", 11),
            ("warning", "robot 'r'", "1 attribute 'damp' of <dynamics> is not used; did you mean 'damping'?", 11),
            ("dropped", "robot 'r'", "1 attribute 'armature' of <dynamics> is not used", 11),
        ]

    def test_elements_in_the_wrong_place(self) -> None:
        robot = two_links(PLAIN, inertial=f'<mass value="7"/><inertial><origin/><mass value="1"/>{INERTIA}</inertial>')
        assert inertial_of(robot, "arm").mass == 1
        assert notes(robot) == [("dropped", "robot 'r'", "1 <mass> element in <link> is not used", 4)]

    def test_very_many_kinds(self) -> None:
        robot = read('<robot name="r"><link name="a"/>\n' + "".join(f"<x{i}/>" for i in range(100)) + "</robot>")
        assert len(robot.notes) == 41
        assert robot.notes[0].text == "1 <x0> element in <robot> is not used"
        assert unnamed(robot.notes[-1].text, "60") == []


class TestVersions:
    @pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
    def test_known(self, version: str) -> None:
        assert two_links(PLAIN, attributes=f'version="{version}"').notes == ()

    @pytest.mark.parametrize("version", ["2.0", "1", "one"])
    def test_unknown(self, version: str) -> None:
        text = f"URDF version '{version}' is unknown; known versions: 1.0, 1.1, 1.2"
        assert notes(two_links(PLAIN, attributes=f'version="{version}"')) == [("reported", "robot 'r'", text, 1)]


ROBOTS = Path(
    str(
        importlib.metadata.distribution("example-robot-data").locate_file(
            "cmeel.prefix/share/example-robot-data/robots"
        )
    )
)


def test_real_robots() -> None:
    """Every robot of example-robot-data is read, except one without links, a library of xacro macros."""
    files = sorted(ROBOTS.rglob("*.urdf"))
    assert len(files) >= 60
    faults = {}
    for file in files:
        try:
            robot = read(file)
        except UrdfError as error:
            faults[file.name] = (error.line, error.element, error.message)
        else:
            assert len(robot.joints) == len(robot.links) - 1
            assert robot.source == str(file)
    assert faults == {"ur3.urdf": (6, "robot", "there are no <link> elements, expected at least one")}


def test_a_long_chain_is_read() -> None:
    count = 2999
    links = "".join(f'<link name="l{i}"/>' for i in range(count))
    joints = "".join(
        f'<joint name="j{i}" type="continuous"><parent link="l{i}"/><child link="l{i + 1}"/>'
        + (f'<mimic joint="j{i - 1}"/>' if i else "")
        + "</joint>"
        for i in reversed(range(count - 1))
    )
    robot = read_text(f'<robot name="r">{links}{joints}</robot>')
    assert (len(robot.links), len(robot.joints)) == (count, count - 1)


STRANGE = """<robot name="r">
<link name="a"><inertial><origin/><mass value="1"/>
<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link><link name="b"/>
<joint name="j" type="revolute"><origin/><parent link="a"/><child link="b"/><axis xyz="1 0 0"/>
<limit lower="-1" upper="1"/><dynamics damping="0"/><mimic joint="k"/></joint></robot>"""


@pytest.mark.parametrize(
    "tag",
    [
        "robot",
        "link",
        "inertial",
        "origin",
        "mass",
        "inertia",
        "joint",
        "parent",
        "child",
        "axis",
        "limit",
        "dynamics",
        "mimic",
    ],
)
def test_what_is_not_known_of_any_element_is_noted(tag: str) -> None:
    """A misspelt attribute or element would otherwise be ignored silently."""
    plain = [note.text for note in read_text(STRANGE).notes]
    assert not any("not used" in text for text in plain)
    text = STRANGE.replace(f"<{tag} ", f'<{tag} strange="1" ', 1).replace(f"<{tag}/>", f'<{tag} strange="1"/>', 1)
    text = text.replace(f"<{tag}>", f'<{tag} strange="1">', 1)
    number = text.count("strange")
    assert number
    notes_on_strange = [(note.kind, note.text) for note in read_text(text).notes if "strange" in note.text]
    count = "1 attribute" if number == 1 else f"{number} attributes"
    assert notes_on_strange == [("dropped", f"{count} 'strange' of <{tag}> {'is' if number == 1 else 'are'} not used")]


def test_a_screw_moves_by_its_pitch_and_other_joints_have_none() -> None:
    screw = only_joint(two_links('<axis xyz="0 0 1"/><drake:screw_thread_pitch value="0.25"/>', "screw"))
    assert screw.pitch == 0.25
    # m per rad, with the rotation about z.
    assert screw.moves.subspace[:, 0].tolist() == [0, 0, 1, 0, 0, 0.25 / (2 * math.pi)]
    assert only_joint(two_links(PLAIN)).pitch == 0.0
    assert Joint("j", "revolute", "a", "b", np.zeros(3), np.eye(3), np.array([0.0, 0.0, 1.0])).pitch == 0.0


@pytest.mark.parametrize("kind", ["ball", "spherical", "floating"])
def test_joints_without_an_axis_are_given_none(kind: str) -> None:
    inertial = '<inertial><mass value="1"/><inertia ixx="1" iyy="1.1" izz="1.2" ixy="0" ixz="0" iyz="0"/></inertial>'
    ends = '<parent link="a"/><child link="b"/>'
    links = f'<link name="a"/><link name="b">{inertial}</link>'
    text = f'<robot name="r">{links}<joint name="j" type="{kind}">{ends}</joint></robot>'
    assert not [note for note in read_text(text).notes if "axis" in note.text]
