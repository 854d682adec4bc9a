"""Habits of people and exporters: what can mean but one thing is read and noted, what cannot is one clear sentence.

Each text is one that occurs: from trackers of parsers and exporters, and from robots that other engines load.
"""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import DynError, UrdfError
from dyn_service.model.description import Description, Note
from dyn_service.model.joints import JOINT_TYPES
from dyn_service.parsing.urdf.reader import read_text
from tests.counting import calls_of
from tests.phrases import unnamed

INERTIAL = (
    '<inertial><origin/><mass value="1"/><inertia ixx="0.02" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.02"/></inertial>'
)
LINKS = f'<link name="base"/>\n<link name="arm">{INERTIAL}</link>'
ENDS = '<parent link="base"/><child link="arm"/>'
STOPS = '<limit lower="-1" upper="1" effort="5" velocity="6"/>'
AXIS = '<axis xyz="0 0 1"/>'
*_MOST, _LAST = JOINT_TYPES
TYPES = f"{', '.join(_MOST)} or {_LAST}"


def robot(body: str, attributes: str = 'name="r"') -> str:
    """A robot whose body begins on line 2."""
    return f"<robot {attributes}>\n{body}\n</robot>"


def joint(inner: str, kind: str = "revolute") -> str:
    """Links on lines 2 and 3, a joint on line 4, the rest of it from line 5."""
    return robot(f'{LINKS}\n<joint name="j" type="{kind}">{ENDS}<origin/>\n{inner}\n</joint>')


def wrap(text: str) -> str:
    """A good robot of links on lines 2 and 3 and a joint on 4, and more from line 5."""
    return robot(f'{LINKS}\n<joint name="j" type="revolute">{ENDS}<origin/>{AXIS}{STOPS}</joint>\n{text}')


def note_tuples(described: Description) -> list[tuple[str, str, str, int]]:
    return [(note.kind, note.element, note.text, note.line) for note in described.notes]


MISSING = "is not used; it is not expanded: run xacro first if the robot needs it"

# name; text; the kinds, elements, texts and lines of all notes
NOTED: list[tuple[str, str, list[tuple[str, str, str, int]]]] = [
    ("plain", wrap(""), []),
    ("comments everywhere", wrap("<!-- a --><!-- <link name='x'/> --><!---->"), []),
    ("default namespace", wrap("").replace('name="r"', 'name="r" xmlns="http://www.ros.org"', 1), []),
    ("namespaces of simulators", wrap("").replace('name="r"', 'name="r" xmlns:drake="http://drake.mit.edu"', 1), []),
    (
        "xacro property, macro and argument",
        wrap('<xacro:property name="w" value="${2 * 3}"/><xacro:macro name="m"/>\n<xacro:arg name="a" default="b"/>'),
        [
            ("dropped", "robot 'r'", "1 <xacro:property> element in <robot> is not used; left over from xacro", 5),
            ("dropped", "robot 'r'", "1 <xacro:macro> element in <robot> is not used; left over from xacro", 5),
            ("dropped", "robot 'r'", "1 <xacro:arg> element in <robot> is not used; left over from xacro", 6),
        ],
    ),
    (
        "xacro include and call, prefix not declared",
        wrap('<xacro:include filename="$(find arm)/a.xacro"/>\n<xacro:arm/><xacro:arm/>'),
        [
            ("warning", "robot 'r'", f"1 <xacro:include> element in <robot> {MISSING}", 5),
            ("warning", "robot 'r'", f"2 <xacro:arm> elements in <robot> {MISSING.replace('is', 'are', 1)}", 6),
        ],
    ),
    (
        "xacro include, prefix declared",
        wrap('<xacro:include filename="a.xacro"/>').replace('name="r"', 'name="r" xmlns:xacro="http://ros.org"', 1),
        [("warning", "robot 'r'", f"1 <xacro:include> element in <robot> {MISSING}", 5)],
    ),
    (
        "xacro call in a link",
        wrap("").replace(f"{INERTIAL}</link>", f"{INERTIAL}<xacro:box_inertia/></link>"),
        [("warning", "robot 'r'", f"1 <xacro:box_inertia> element in <link> {MISSING}", 3)],
    ),
    ("xacro within what is not read", wrap("<gazebo><xacro:plugin/><x>${y}</x></gazebo>"),
     [("dropped", "robot 'r'", "1 <gazebo> element in <robot> is not used", 5)]),
    ("empty axis of a fixed joint", joint("<axis/>", "fixed"),
     [("dropped", "joint 'j' axis", "an empty <axis>, which a fixed joint does not need", 5)]),
    ("blank axis of a fixed joint", joint('<axis xyz=" "/>', "fixed"),
     [("dropped", "joint 'j' axis", "an empty <axis>, which a fixed joint does not need", 5)]),
    ("zero axis of a fixed joint", joint('<axis xyz="0 0 0"/>', "fixed"), []),
    ("the same axis twice", joint(f"{AXIS}{STOPS}\n{AXIS}"),
     [("dropped", "joint 'j'", "there are 2 <axis> elements with the same content, the first on line 5", 6)]),
    ("the same axis in other digits", joint(f'{AXIS}{STOPS}\n<axis xyz=" 0.0  -0 1e0 "/>'),
     [("dropped", "joint 'j'", "there are 2 <axis> elements with the same content, the first on line 5", 6)]),
    ("the same axis three times", joint(f"{AXIS}{STOPS}\n{AXIS}\n{AXIS}"),
     [("dropped", "joint 'j'", "there are 3 <axis> elements with the same content, the first on line 5", 6)]),
    ("the same limit twice", joint(f"{AXIS}{STOPS}\n{STOPS}"),
     [("dropped", "joint 'j'", "there are 2 <limit> elements with the same content, the first on line 5", 6)]),
    ("the same parent twice", joint(f'{AXIS}{STOPS}<parent link="base"/>'),
     [("dropped", "joint 'j'", "there are 2 <parent> elements with the same content, the first on line 4", 5)]),
    ("damping and friction", joint(f'{AXIS}{STOPS}<dynamics damping="0.5" friction="0.25"/>'), []),
    ("damping of nothing", joint(f'{AXIS}{STOPS}<dynamics damping="0"/>'), []),
    ("damping of a fixed joint", joint('<dynamics damping="1" friction="2"/>', "fixed"), []),
    (
        "effort and velocity 0",
        joint(f'{AXIS}<limit lower="0" upper="1" effort="0" velocity="0.0"/>'),
        [("warning", "joint 'j'",
          "effort limit 0 means no motor, velocity limit 0 means no limit; remove limits that are unknown", 4)],
    ),
    (
        "velocity 0",
        joint(f'{AXIS}<limit effort="1" velocity="0"/>', "continuous"),
        [("warning", "joint 'j'",
          "velocity limit 0 means no limit; remove limits that are unknown", 4)],
    ),
    ("effort 0 of a fixed joint", joint('<limit effort="0" velocity="0"/>', "fixed"), []),
    (
        "right angle in degrees",
        joint(f"{AXIS}{STOPS}").replace("<origin/>\n", '<origin rpy="0 0 90"/>\n'),
        [("warning", "joint 'j' origin", "rpy (0, 0, 90) is probably in degrees, expected rad", 4)],
    ),
    ("a whole turn", joint(f"{AXIS}{STOPS}").replace("<origin/>\n", '<origin rpy="6.2832 0 -6.29"/>\n'), []),
    (
        "degrees of an inertia",
        wrap("").replace("<inertial><origin/>", '<inertial><origin rpy="-180 0 0"/>'),
        [("warning", "link 'arm' inertial origin", "rpy (-180, 0, 0) is probably in degrees, expected rad", 3)],
    ),
    (
        "floating joint commented out",
        wrap('<!--\n <joint name="root" type="floating"><parent link="world"/></joint> -->'),
        [("warning", "robot 'r'",
          "joint 'root' of type floating is commented out, so the robot's root is fixed in the world; "
             'if it moves freely, read the robot with root="floating"', 6)],
    ),
    (
        "floating joint commented out, attributes about, no name",
        wrap("<!-- <joint\n type = 'floating'\n/> -->"),
        [("warning", "robot 'r'",
          "a joint of type floating is commented out, so the robot's root is fixed in the world; "
             'if it moves freely, read the robot with root="floating"', 5)],
    ),
    (
        "two floating joints commented out",
        wrap('<!-- <joint type="floating" name="a"/>\n<joint type="fixed" name="b"/><joint type="floating"/> -->'),
        [
            ("warning", "robot 'r'",
             "joint 'a' of type floating is commented out, so the robot's root is fixed in the world; "
             'if it moves freely, read the robot with root="floating"', 5),
            ("warning", "robot 'r'",
             "a joint of type floating is commented out, so the robot's root is fixed in the world; "
             'if it moves freely, read the robot with root="floating"', 6),
        ],
    ),
    ("other joints commented out", wrap('<!-- <joint type="fixed" name="floating"/> type="floating" -->'), []),
    ("floating joint on a page without tags", wrap("<!-- a joint of type='floating' would be here -->"), []),
    (
        "misspelt inertial of a link that does not move",
        wrap("").replace('<link name="base"/>', '<link name="base"><intertial><mass value="1"/></intertial></link>'),
        [("warning", "robot 'r'", "1 <intertial> element in <link> is not used; did you mean <inertial>?", 2)],
    ),
    (
        "inertia without its inertial",
        wrap("").replace('<link name="base"/>', '<link name="base"><inertia ixx="1"/></link>'),
        [("warning", "robot 'r'", "1 <inertia> element in <link> is not used; did you mean <inertial>?", 2)],
    ),
    (
        "tags in capitals and plurals",
        joint(f'{AXIS}{STOPS}<Dynamics damping="1"/><limits lower="2"/>'),
        [
            ("warning", "robot 'r'", "1 <Dynamics> element in <joint> is not used; did you mean <dynamics>?", 5),
            ("warning", "robot 'r'", "1 <limits> element in <joint> is not used; did you mean <limit>?", 5),
        ],
    ),
    (
        "extensions that look like something",
        wrap("").replace(f"{INERTIAL}</link>", f"{INERTIAL}<collision_checking/><self_collision_checking/></link>"),
        [
            ("dropped", "robot 'r'", "1 <collision_checking> element in <link> is not used", 3),
            ("dropped", "robot 'r'", "1 <self_collision_checking> element in <link> is not used", 3),
        ],
    ),
    (
        "misspelt geometry is no loss",
        wrap("").replace(f"{INERTIAL}</link>", f"{INERTIAL}<visuel/><colision/></link>"),
        [
            ("dropped", "robot 'r'", "1 <visuel> element in <link> is not used", 3),
            ("dropped", "robot 'r'", "1 <colision> element in <link> is not used", 3),
        ],
    ),
    (
        "nine moments of inertia",
        wrap("").replace('izz="0.02"/>', 'izz="0.02" iyx="0" izx="0" izy="0"/>'),
        [("dropped", "robot 'r'", f"1 attribute '{key}' of <inertia> is not used", 3) for key in ("iyx", "izx", "izy")],
    ),
    (
        "limits of acceleration and jerk",
        joint(f"{AXIS}{STOPS}").replace('velocity="6"', 'velocity="6" acceleration="7" jerk="8"'),
        [],
    ),
    (
        "rpy of an axis, properties of a joint",
        joint(f'<axis rpy="0 0 0" xyz="0 0 1"/>{STOPS}<joint_properties damping="0.2" friction="0.2"/>'),
        [
            ("dropped", "robot 'r'", "1 <joint_properties> element in <joint> is not used", 5),
            ("dropped", "robot 'r'", "1 attribute 'rpy' of <axis> is not used", 5),
        ],
    ),
    (
        "type of a link",
        wrap("").replace('<link name="base"/>', '<link name="base" type="laser"/>'),
        [("dropped", "robot 'r'", "1 attribute 'type' of <link> is not used", 2)],
    ),
    ("a tag of 5000 letters", wrap(f"<{'x' * 5000}/>"),
     [("dropped", "robot 'r'", f"1 <{'x' * 60}> element in <robot> is not used", 5)]),
    ("text between tags", wrap("some words").replace("<mass", "words <mass"), []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "notes"), [pytest.param(*case[1:], id=case[0]) for case in NOTED])
def test_noted(text: str, notes: list[tuple[str, str, str, int]]) -> None:
    described = read_text(text)
    assert sorted(note_tuples(described)) == sorted(notes)
    assert [joint_read.name for joint_read in described.joints] == ["j"]


MACROS = robot('<xacro:macro name="arm" params="prefix"><link name="${prefix}base"/></xacro:macro>')

# name; text; the place and the values that the message names
REFUSED: list[tuple[str, str, list[str]]] = [
    ("two axes", joint(f'{AXIS}\n<axis xyz="0 1 0"/>'),
     ["<text>:6: joint 'j'", "2", "<axis>", "5"]),
    ("an axis and an empty one", joint(f"{AXIS}\n<axis/>"),
     ["<text>:6: joint 'j'", "2", "<axis>", "5"]),
    ("two masses alike", wrap("").replace('<mass value="1"/>', '<mass value="1"/><mass value="1"/>'),
     ["<text>:3: link 'arm' inertial", "2", "<mass>", "3"]),
    ("two inertials alike", wrap("").replace(INERTIAL, f"{INERTIAL}\n{INERTIAL}"),
     ["<text>:4: link 'arm'", "2", "<inertial>", "3"]),
    ("a library of macros", MACROS, ["<text>:1: robot", "<link>"]),
    ("axis of a moving joint empty", joint(f"<axis/>{STOPS}"),
     ["<text>:5: joint 'j' axis", "'xyz'", "missing"]),
    ("axis misspelt", joint(f'<axis xzy="0 0 1"/>{STOPS}'),
     ["<text>:5: joint 'j' axis", "'xyz'", "5", "'xzy'", "<axis>"]),
    ("commas", joint(f'<axis xyz="0, 0, 1"/>{STOPS}'),
     ["<text>:5: joint 'j' axis", "'xyz'", "3", "'0, 0, 1'"]),
    ("a full stop too many", joint(f'{AXIS}<limit lower="-1.57." upper="1"/>'),
     ["<text>:5: joint 'j' limit", "'lower'", "'-1.57.'"]),
    ("pi by name", joint(f'{AXIS}<limit lower="-pi" upper="pi"/>'),
     ["<text>:5: joint 'j' limit", "'lower'", "'-pi'"]),
    ("four angles", joint(f"{AXIS}{STOPS}").replace("<origin/>\n", '<origin rpy="-3.14 1.57 0 0"/>\n'),
     ["<text>:4: joint 'j' origin", "'rpy'", "3", "4", "'-3.14 1.57 0 0'"]),
    ("environment of xacro", joint(f"{AXIS}{STOPS}").replace("<origin/>\n", '<origin xyz="$(optenv X 0 0 1)"/>\n'),
     ["<text>:4: joint 'j' origin", "'xyz'", "'$(optenv X 0 0 1)'", "URDF"]),
    ("xacro expression beside left-overs", robot('<xacro:include filename="a"/><link name="${p}base"/>'),
     ["<text>:2: link", "'name'", "'${p}base'", "URDF"]),
    ("left-over elsewhere explains no fault in a link", wrap("<xacro:x/>").replace('mass value="1"', "mass"),
     ["<text>:3: link 'arm' inertial mass", "'value'"]),
    ("nothing after the comment", "<!-- robot -->",
     ["<text>:1", "XML", "15"]),
    ("ampersand", wrap('<link name="a & b"/>'),
     ["<text>:5", "XML", "-formed", "16", "<robot>", "1"]),
    ("turning joint by another name", joint("", "rotational"),
     ["<text>:4: joint 'j'", "'rotational'", TYPES]),
    ("blank before the type", joint("", " fixed"),
     ["<text>:4: joint 'j'", "' fixed'", TYPES, "'fixed'"]),
    ("blank after a link", joint("").replace('<child link="arm"/>', '<child link="arm "/>'),
     ["<text>:4: joint 'j'", "'arm '", "'arm'"]),
    ("link in capitals", joint("").replace('<child link="arm"/>', '<child link="ARM"/>'),
     ["<text>:4: joint 'j'", "'ARM'", "'arm'"]),
    ("links by name", joint("").replace('<parent link="base"/>', '<parent name="base"/>'),
     ["<text>:4: joint 'j' parent", "'link'"]),
    ("robot without a name", wrap("").replace('name="r"', "", 1), ["<text>:1: robot", "'name'"]),
    ("robot with Name", wrap("").replace('name="r"', 'Name="r"', 1),
     ["<text>:1: robot", "'name'", "1", "'Name'", "<robot>"]),
    ("mimic of itself", joint(f'{AXIS}{STOPS}<mimic joint="j"/>'),
     ["<text>:4: joint 'j' mimic", "follows", "itself"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "values"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED])
def test_refused_with_its_place(text: str, values: list[str]) -> None:
    with pytest.raises(UrdfError) as excinfo:
        read_text(text)
    assert unnamed(excinfo.value, *values) == []


def test_undeclared_prefix_in_a_robot_that_moves() -> None:
    """Other engines load it; the numbers must be those of the file without the left-overs."""
    plain, left = (Robot.from_urdf(wrap(text)) for text in ("", "<xacro:arm/>"))
    q = np.array([0.3])
    assert np.array_equal(plain.mass_matrix(q), left.mass_matrix(q))
    assert plain.fingerprint == left.fingerprint


class TestWorld:
    """A parent `world` that no link declares is the world."""

    FIXED = '<joint name="{name}" type="fixed"><origin/><parent link="world"/><child link="{child}"/></joint>'
    NOTE = Note(
        "defaulted",
        "link 'world'",
        "is the parent of a joint but not declared: added as the root link, without mass",
        5,
    )

    def test_is_added(self) -> None:
        described = read_text(wrap(self.FIXED.format(name="stand", child="base")))
        assert [(link.name, link.inertial, link.line) for link in described.links][-1] == ("world", None, 5)
        assert described.notes == (self.NOTE,)

    def test_is_the_root_and_in_the_receipt(self) -> None:
        robot = Robot.from_urdf(wrap(self.FIXED.format(name="stand", child="base")))
        assert robot.link_names[0] == "world"
        assert self.NOTE in robot.receipt.notes
        with_world = Robot.from_urdf(wrap('<link name="world"/>' + self.FIXED.format(name="stand", child="base")))
        assert robot.fingerprint == with_world.fingerprint

    def test_of_two_robots(self) -> None:
        two = self.FIXED.format(name="stand", child="base") + '\n<link name="other"/>'
        described = read_text(wrap(two + self.FIXED.format(name="also", child="other")))
        assert described.notes == (self.NOTE,)

    def test_declared_is_no_news(self) -> None:
        assert read_text(wrap('<link name="world"/>' + self.FIXED.format(name="s", child="base"))).notes == ()


def legged(legs: int, turns: int, names: tuple[str, ...] = ("thigh", "shank", "foot"), kind: str = "continuous") -> str:
    """A trunk on line 2 with so many legs, of so many turning joints each and the rest of their joints fixed."""
    parts = [f'<link name="trunk">{INERTIAL}</link>\n']
    for leg in range(legs):
        parent = "trunk"
        for k, name in enumerate(names):
            child = f"{name}_{leg}"
            joint_type = kind if k < turns else "fixed"
            parts.append(f'<link name="{child}">{INERTIAL}</link><joint name="{child}" type="{joint_type}"><origin/>')
            parts.append(f'<parent link="{parent}"/><child link="{child}"/><axis xyz="0 1 0"/></joint>')
            parent = child
    return robot("".join(parts))


class TestWalking:
    """A robot with legs and a base that is fixed."""

    def doubts(self, text: str) -> list[Note]:
        return [note for note in read_text(text).notes if " legs (" in note.text]

    @pytest.mark.parametrize("kind", ["continuous", "revolute"])
    def test_four_legs(self, kind: str) -> None:
        text = (
            "the robot has 4 legs ('foot_0', 'foot_1', 'foot_2', 'foot_3'), and this link, its root, is "
            'fixed in the world: if the robot moves freely, read it with root="floating"'
        )
        assert self.doubts(legged(4, 3, kind=kind)) == [Note("warning", "link 'trunk'", text, 2)]

    @pytest.mark.parametrize(("legs", "turns", "warns"), [(2, 2, True), (1, 3, False), (2, 1, False), (2, 0, False)])
    def test_how_many(self, legs: int, turns: int, warns: bool) -> None:
        assert bool(self.doubts(legged(legs, turns))) == warns

    def test_slides_are_no_hips(self) -> None:
        assert self.doubts(legged(2, 3, kind="prismatic")) == []

    @pytest.mark.parametrize(
        ("name", "warns"),
        [
            ("LFoot", True), ("left_ankle_roll_link", True), ("FR_calf", True), ("lowerleg", True), ("lower_leg", True),
            ("toe1", True), ("leftfoot", True), ("LF_SHANK", True), ("r_sole", True), ("RKneePitchLink", True),
            ("TorsoLeft", False), ("base_footprint", False), ("leg", False), ("console", False), ("tool", False),
            ("machine", False), ("hip", False), ("heelix", False), ("footage", False), ("torso_leg", False),
        ],
    )  # fmt: skip
    def test_names(self, name: str, warns: bool) -> None:
        assert bool(self.doubts(legged(2, 2, names=("a", name)))) == warns

    def test_knee_ankle_and_foot_are_one_leg(self) -> None:
        """And so are the other parts on the thigh."""
        text = legged(2, 3, names=("thigh", "knee", "ankle", "foot", "toe"))
        rotor = '<link name="knee_rotor"/><joint name="x" type="fixed"><parent link="thigh_0"/>'
        rotor += '<child link="knee_rotor"/></joint>'
        (note,) = self.doubts(text.replace("</robot>", f"{rotor}</robot>"))
        assert note.text.startswith("the robot has 2 legs ('ankle_0', 'ankle_1')")

    def test_a_leg_is_one_whatever_its_links_between_are_called(self) -> None:
        """Knee and foot have links of other names between them: the foot alone still represents the leg."""
        names = ("hip", "knee", "rod", "bar", "foot")
        assert self.doubts(legged(1, 5, names=names)) == []
        (note,) = self.doubts(legged(2, 5, names=names))
        assert note.text.startswith("the robot has 2 legs ('foot_0', 'foot_1')")

    def test_more_legs_than_are_named(self) -> None:
        (note,) = self.doubts(legged(6, 2))
        assert unnamed(note.text, "6 legs", "'shank_0', 'shank_1', 'shank_2', 'shank_3'", "2 more") == []

    def test_a_long_chain_of_feet_is_soon_read(self) -> None:
        """Linear in links, each called foot: three times as many take about three times as many calls."""

        def calls(links: int) -> int:
            return calls_of(lambda: read_text(legged(1, links, names=tuple(f"foot{i}" for i in range(links)))))

        assert calls(600) < 3.3 * calls(200)


def test_comments_do_not_cost_more_than_their_length() -> None:
    """Twice the comment, twice the time: were it squared, this would take hours."""
    for piece in ("<joint ", "<joint type", '<joint type="floating" ', "<joint type=", "name="):
        read_text(wrap(f"<!-- {piece * (1_000_000 // len(piece))} -->"))


@pytest.mark.parametrize(
    ("kind", "positions", "velocities"),
    [("planar", "x y theta", "vx vy omega"), ("spherical", "qx qy qz qw", "wx wy wz"),
     ("floating", "x y z qx qy qz qw", "vx vy vz wx wy wz")],
)  # fmt: skip
def test_joints_with_several_ways_to_move_are_read(kind: str, positions: str, velocities: str) -> None:
    """A range in the file says nothing of several entries: none of them has a limit."""
    text = joint(AXIS + STOPS, kind)
    (described,) = read_text(text).joints
    assert (described.type, described.axis.tolist(), described.line) == (kind, [0, 0, 1], 4)
    read = Robot.from_urdf(text)
    assert read.configuration.position_names == tuple(f"j.{part}" for part in positions.split())
    assert read.configuration.velocity_names == tuple(f"j.{part}" for part in velocities.split())
    assert read.receipt.joints == {kind: 1}
    limits = read.limits
    np.testing.assert_array_equal(limits.lower, np.full(read.nq, -np.inf))
    np.testing.assert_array_equal(limits.upper, np.full(read.nq, np.inf))
    np.testing.assert_array_equal(limits.velocity, np.full(read.nv, np.inf))
    np.testing.assert_array_equal(limits.effort, np.full(read.nv, np.inf))


def test_suspects_keep_a_message_short() -> None:
    """Whatever is misspelt, a message stays one line of a few hundred characters."""
    for tag in ("intertial", "x" * 5000, "i\u00e4nertial"):
        with pytest.raises(DynError) as excinfo:
            read_text(robot(f'<lin name="x"/><link name="a"><{tag}/></link><link name="b"/>'))
        assert len(str(excinfo.value)) < 400
        assert str(excinfo.value).isprintable()


def test_kinds_that_are_known_are_counted_on_where_further_ones_are_not_told_apart() -> None:
    kinds = "".join(f"<kind{k}/>" for k in range(41))
    texts = [note.text for note in read_text(wrap(f"{kinds}<kind0/><kind1/><kind1/>")).notes]
    assert "2 <kind0> elements in <robot> are not used" in texts
    assert "3 <kind1> elements in <robot> are not used" in texts
    assert texts[-1] == "1 further item of other kinds is not used"
