"""Warnings about units and sizes: each mistake is reported on real robots, and correct robots get none."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyn_service.model.description import Description
from dyn_service.parsing.structure import warnings_of
from dyn_service.parsing.urdf.reader import read, read_text
from tests.oracle.example_robots import SUPPORTED, path_of

OURS = sorted(str(path) for path in Path("urdf").glob("*.urdf"))


@cache
def real_robots() -> dict[str, Description]:
    """Every robot of example-robot-data, and ours."""
    return {name: read(path_of(name)) for name in SUPPORTED} | {name: read(name) for name in OURS}


def warning(robot: Description) -> list[tuple[str, str]]:
    return [(note.element, note.text) for note in warnings_of(robot)]


def link(name: str, mass: float, moment: float, com: float = 0.0) -> str:
    """A link whose moments of inertia are alike, its centre of mass on the x axis."""
    moments = f'<inertia ixx="{moment}" ixy="0" ixz="0" iyy="{moment}" iyz="0" izz="{moment}"/>'
    return f'<link name="{name}"><inertial><origin xyz="{com} 0 0"/><mass value="{mass}"/>{moments}</inertial></link>'


def joint(name: str, parent: str, child: str, x: float, kind: str = "continuous", inner: str = "") -> str:
    ends = f'<parent link="{parent}"/><child link="{child}"/>'
    return f'<joint name="{name}" type="{kind}"><origin xyz="{x} 0 0"/>{ends}<axis xyz="0 0 1"/>{inner}</joint>'


def robot_of(*parts: str) -> Description:
    return read_text(f'<robot name="r">{"".join(parts)}</robot>')


BASE = '<link name="base"/>'


def chain(
    *links: tuple[float, float, float], length: float = 0.5, kind: str = "continuous", inner: str = "", base: str = BASE
) -> Description:
    """A chain of links (mass, moment, com x), each joint `length` from the one before; the first is at the root."""
    parts = [base]
    for i, (mass, moment, com) in enumerate(links):
        parent, x = (f"l{i - 1}", length) if i else ("base", 0.0)
        parts += [link(f"l{i}", mass, moment, com), joint(f"j{i}", parent, f"l{i}", x, kind, inner)]
    return robot_of(*parts)


SANE = (2.0, 0.05, 0.25)


def test_a_sane_chain_is_left_in_peace() -> None:
    assert warning(chain(SANE, SANE, SANE)) == []


def test_a_slip_of_units_is_one_doubt_and_not_one_more_for_every_link() -> None:
    """In millimetres masses are far from their links' origins, and radii of gyration metres: none of it is news."""
    ((_, text),) = warning(chain(*((2.0, 5e4, 250.0),) * 3, length=500.0))
    assert "millimetres" in text


# Checked by hand on real robots: these have an inertia that no body of their size can have.
ALARMS = {
    "radius of gyration": {
        "baxter_description/urdf/baxter.urdf": 8,
        "double_pendulum_description/urdf/double_pendulum_simple.urdf": 1,
        "pr2_description/urdf/pr2.urdf": 2,
        "simple_humanoid_description/urdf/simple_humanoid.urdf": 8,
        "simple_humanoid_description/urdf/simple_humanoid_classical.urdf": 8,
        "tiago_description/robots/tiago.urdf": 23,
        "tiago_description/robots/tiago_dual.urdf": 46,
    },
    "too little inertia": {
        "anymal_b_simple_description/robots/anymal-kinova.urdf": 2,
        "baxter_description/urdf/baxter.urdf": 2,
        "finger_edu_description/robots/finger_edu.urdf": 1,
        "tiago_description/robots/tiago.urdf": 1,
        "tiago_description/robots/tiago_dual.urdf": 1,
        "tiago_description/robots/tiago_no_hand.urdf": 1,
    },
    "degrees": {},
    "millimetres": {},
    "grams": {},
}


@pytest.mark.parametrize("text", ALARMS)
def test_alarms_on_real_robots(text: str) -> None:
    counts = Counter(
        name
        for name, robot in real_robots().items()
        for note in robot.notes
        if note.kind == "warning" and text in note.text and "massless" not in note.text
    )
    assert counts == ALARMS[text]


@pytest.mark.parametrize(("text", "robots"), [(" legs (", 32), ("is commented out", 2), ("limit 0", 5)])
def test_how_many_real_robots_are_doubted(text: str, robots: int) -> None:
    """Counted by hand: 32 of the 81 have legs (and nothing that lets go of their base)."""
    assert sum(any(text in note.text for note in robot.notes) for robot in real_robots().values()) == robots


def slipped(
    robot: Description, *, length: float = 1.0, mass: float = 1.0, moment: float = 1.0, angle: float = 1.0
) -> Description:
    """The robot with lengths, masses, moments of inertia or limits of revolute joints in other units."""
    links = []
    for link in robot.links:
        part = link.inertial
        if part is not None:
            part = replace(part, mass=part.mass * mass, com=part.com * length, inertia=part.inertia * moment)
        links.append(replace(link, inertial=part))
    joints = []
    for joint in robot.joints:
        limit, factor = joint.limit, {"revolute": angle, "prismatic": length}.get(joint.type, 1.0)
        if limit is not None:
            lower, upper = (None if x is None else x * factor for x in (limit.lower, limit.upper))
            limit = replace(limit, lower=lower, upper=upper)
        joints.append(replace(joint, xyz=joint.xyz * length, limit=limit))
    return replace(robot, links=tuple(links), joints=tuple(joints), notes=())


# name; the slip; words of the doubt; how many of the 81 robots lack what would tell it
SLIPS = [
    # A quadrotor of one link, and three with no two joints apart.
    ("lengths in mm", {"length": 1e3}, "probably given in millimetres", 4),
    ("lengths in mm, moments in kg mm^2", {"length": 1e3, "moment": 1e6}, "probably given in millimetres", 4),
    (
        "all as CAD has it: mm, g, g mm^2",
        {"length": 1e3, "mass": 1e3, "moment": 1e9},
        "probably given in millimetres",
        4,
    ),
    # Two bars of 1 m and 1 kg, as light as balsa, and bars of some cm and g: a thousand times that is no wonder.
    ("masses in g", {"mass": 1e3}, "probably given in grams", 2),
    ("masses in g, moments in g m^2", {"mass": 1e3, "moment": 1e3}, "probably given in grams", 2),
    ("moments in kg mm^2", {"moment": 1e6}, "too much inertia", 0),
    ("moments in g mm^2", {"moment": 1e9}, "too much inertia", 0),
    ("moments in kg cm^2", {"moment": 1e4}, "too much inertia", 0),
    ("moments in g m^2", {"moment": 1e3}, "too much inertia", 1),
    ("moments in t m^2", {"moment": 1e-3}, "too little inertia", 0),
    # Those without revolute joints with stops.
    ("limits in degrees", {"angle": 180.0 / math.pi}, "probably in degrees", 8),
]


@pytest.mark.parametrize(("slip", "text", "unwarned"), [pytest.param(*slip[1:], id=slip[0]) for slip in SLIPS])
def test_slips_put_into_real_robots(slip: dict[str, float], text: str, unwarned: int) -> None:
    robots = real_robots()
    warned_robots = [
        name for name, robot in robots.items() if any(text in t for _, t in warning(slipped(robot, **slip)))
    ]
    assert len(robots) == 81
    assert len(warned_robots) == len(robots) - unwarned


def test_one_slip_is_one_doubt() -> None:
    """Not one more for every link that is out of scale for the same reason."""
    robot = chain(SANE, SANE, SANE)
    assert warning(slipped(robot, length=1e3)) == [
        (
            "link 'l0'",
            "its joints or centre of mass are up to 500 m away, probably given in millimetres: at such lengths most of "
            "the robot's 6 kg would be thinner than air",
        )
    ]
    assert warning(slipped(robot, mass=1e5)) == [
        (
            "link 'l0'",
            "mass 200000 kg is probably given in grams: most of the robot's 600000 kg is in links that would be "
            "denser than solid steel",
        )
    ]


def test_the_link_with_the_longest_distance_and_the_heaviest_are_named() -> None:
    robot = chain((2.0, 0.05, 0.25), (3.0, 0.05, 0.9), (1.0, 0.05, 0.25))
    assert [element for element, _ in warning(slipped(robot, length=1e3))] == ["link 'l1'"]
    assert [element for element, _ in warning(slipped(robot, mass=1e5))] == ["link 'l1'"]


def test_a_crane_and_a_press_are_no_slips() -> None:
    # A boom of 40 m and 1 t, and rolls of solid steel as long as they are thick, 0.3 m.
    boom = (1000.0, 1000.0 * 40.0**2 / 12.0, 20.0)
    roll = (0.7 * 7850 * 0.3**3, 0.7 * 7850 * 0.3**5 / 6.0, 0.15)
    assert not any("millimetres" in text for _, text in warning(chain(boom, boom, boom, length=40.0)))
    assert warning(chain(roll, roll, roll, length=0.3)) == []


def test_a_light_robot_is_not_in_grams() -> None:
    """Heavy for its size, but 30 kg in all."""
    dense = (10.0, 10.0 * 0.05**2, 0.05)
    assert not any("grams" in text for _, text in warning(chain(dense, dense, dense, length=0.08)))
    assert any("grams" in text for _, text in warning(slipped(chain(dense, dense, dense, length=0.08), mass=10.0)))


@pytest.mark.parametrize(("total", "warns"), [(90.0, False), (110.0, True), (0.9e8, True), (1.1e8, False)])
def test_robots_of_a_tenth_of_a_kilogram_to_a_hundred_tons_may_be_in_grams(total: float, warns: bool) -> None:
    mass = total / 3.0
    dense = (mass, mass * 0.01**2, 0.01)
    assert any("grams" in text for _, text in warning(chain(dense, dense, dense, length=0.02))) == warns


@pytest.mark.parametrize("kind", ["fixed", "prismatic"])
def test_where_a_robot_stands_is_not_its_size(kind: str) -> None:
    """50 m from the origin of a world without mass, and a track of 30 m along which all of it slides."""
    limit = '<limit lower="0" upper="30" effort="1" velocity="1"/>'
    stand = joint("stand", "world", "base", 50.0, kind, limit)
    robot = chain(SANE, SANE, SANE, base=f'<link name="world"/>{BASE}{stand}')
    assert not any("millimetres" in text for _, text in warning(robot))


class TestInertia:
    """One link in the middle of a chain whose moments do not fit."""

    def middle(self, moment: float, mass: float = 2.0) -> list[tuple[str, str]]:
        return warning(chain(SANE, (mass, moment, 0.25), SANE))

    @pytest.mark.parametrize(("share", "warns"), [(4.9, False), (5.1, True)])
    def test_too_much(self, share: float, warns: bool) -> None:
        """A radius of gyration of five times the half metre between the joints."""
        k = share * 0.5
        text = (
            f"the radius of gyration is {k:.3g} m, {share:.3g} times the 0.5 m between the joints and centres of mass "
            "about it: too much inertia for 2 kg"
        )
        assert self.middle(2.0 * k**2) == ([("link 'l1'", text)] if warns else [])

    @pytest.mark.parametrize(("share", "warns"), [(0.95, True), (1.05, False)])
    def test_too_little(self, share: float, warns: bool) -> None:
        """A ball of osmium of 2 kg has a radius of 28 mm, and the moment 2/5 m r^2 about each axis."""
        radius = (3.0 * 2.0 / (4.0 * math.pi * 22590.0)) ** (1.0 / 3.0)
        warnings = self.middle(share * 0.4 * 2.0 * radius**2)
        density = 22590.0 / share**1.5
        ball = f"even a ball would need {density:.3g} kg/m^3, and the densest matter has 22590"
        text = f"too little inertia for 2 kg: {ball}"
        assert warnings == ([("link 'l1'", text)] if warns else [])

    def test_where_a_robot_stands_is_no_size(self) -> None:
        """k = 4 m is too much for half a metre, 5 m from the origin of a world without mass too."""
        first = link("l0", 2.0, 2.0 * 4.0**2) + joint("j0", "base", "l0", 5.0)
        second = link("l1", *SANE) + joint("j1", "l0", "l1", 0.5)
        assert any("8 times the 0.5 m" in text for _, text in warning(robot_of(BASE, first, second)))
        heavy = link("base", *SANE)
        assert not any("too much" in text for _, text in warning(robot_of(heavy, first, second)))

    def test_what_fixed_joints_weld_is_one_body(self) -> None:
        """A cover of 0.2 m radius is no wonder on a trunk of 1 m, however near its frame its own centre is."""
        cover = link("cover", 1.0, 0.04, 0.001) + joint("weld", "trunk", "cover", 0.01, "fixed")
        arm = link("arm", 0.1, 1e-4) + joint("wave", "trunk", "arm", 1.0)
        trunk = '<link name="trunk"/>' + joint("turn", "base", "trunk", 0.0)
        assert warning(robot_of(BASE, trunk, cover, arm)) == []

    @pytest.mark.parametrize(("yaw", "warns"), [(0.0, True), (math.pi, False)])
    def test_parts_of_one_body_are_turned(self, yaw: float, warns: bool) -> None:
        """Two joints 0.3 m away on the same side, or on two sides: 0.3 m or 0.6 m apart, for k = 2 m."""
        trunk = '<link name="a"/><link name="b"/>' + joint("j", "base", "a", 0.0)
        turned_joint = joint("k", "a", "b", 0.0, "fixed").replace("<origin", f'<origin rpy="0 0 {yaw}"')
        arms = link("d", 1.0, 1e-2, 0.1) + joint("l", "a", "d", 0.3) + joint("m", "b", "c", 0.3, "fixed")
        robot = robot_of(BASE, trunk, turned_joint, link("c", 1.0, 4.0), arms)
        assert any("too much" in text for _, text in warning(robot)) == warns

    def test_single_bodies_have_no_size(self) -> None:
        """A centre of mass a millimetre off its frame does not make a body small."""
        assert warning(chain((2.0, 0.5, 0.001))) == []

    def test_a_rotor_almost_on_its_joint(self) -> None:
        """0.1 mm between joints says nothing: the arm's half metre is the measure."""
        arm = link("arm", 2.0, 0.05, 0.25) + joint("j", "base", "arm", 0.0)
        rotor = link("rotor", 1.0, 0.01) + joint("k", "arm", "rotor", 1e-4)
        assert warning(robot_of(BASE, arm, rotor)) == []

    def test_dust_is_left_in_peace(self) -> None:
        """Some mass for a parser's sake, 1e-7 of the robot's, with moments as if it were 1 m wide."""
        assert not any("too much" in text for _, text in self.middle(4e-5, 3.9e-6))
        assert any("too much" in text for _, text in self.middle(4e-4, 4.1e-6))

    def test_stand_ins_are_doubted_once(self) -> None:
        robot = chain(SANE, (1.0, 1.0, 0.0), SANE, length=0.1)
        assert len(warning(robot)) == 1

    @pytest.mark.parametrize(("k", "text"), [(0.9e-6, "a point mass"), (1.1e-6, "too little inertia")])
    def test_a_point_mass_is_a_micrometre_wide(self, k: float, text: str) -> None:
        ((_, doubt),) = self.middle(2.0 * k**2)
        assert text in doubt

    def test_point_masses_are_doubted_once(self) -> None:
        assert self.middle(0.0) == [("link 'l1'", "mass 2 kg and no inertia: a point mass")]


def limits(kind: str, lower: object, upper: object) -> list[str]:
    inner = f'<limit lower="{lower}" upper="{upper}" effort="1" velocity="1"/>'
    return [text for _, text in warning(chain(SANE, SANE, SANE, kind=kind, inner=inner))]


class TestLimits:
    @pytest.mark.parametrize("degrees", [22, 30, 45, 90, 135, 170, 180, 270, 350, 360, 720])
    def test_degrees(self, degrees: int) -> None:
        turns = f"{degrees / (2 * math.pi):.3g}"
        text = f"limits {-degrees} and {degrees} rad are probably in degrees: {turns} turns"
        assert limits("revolute", -degrees, degrees) == [text] * 3

    def test_one_side(self) -> None:
        assert limits("revolute", 0, 90) == ["limits 0 and 90 rad are probably in degrees: 14.3 turns"] * 3
        assert limits("revolute", -90, 1) == ["limits -90 and 1 rad are probably in degrees: 14.3 turns"] * 3
        robot = chain(SANE, kind="revolute", inner='<limit lower="-90"/>')
        assert warning(robot) == [("joint 'j0'", "limit -90 rad is probably in degrees: 14.3 turns")]

    @pytest.mark.parametrize(
        "limit",
        # A turn, two, ten, a hundred of them to six digits; what people write for none.
        [3.14, 6.28319, 10, 4 * math.pi, 12.57, 18.85, 31.4159, 62.8319, 314.159, 628.319, 100, 1000, 1e5, 1e16],
    )
    def test_radians(self, limit: float) -> None:
        assert limits("revolute", -limit, limit) == []

    @pytest.mark.parametrize("kind", ["continuous", "prismatic", "fixed"])
    def test_only_joints_that_turn_between_stops_have_angles(self, kind: str) -> None:
        assert not any("degrees" in text for text in limits(kind, -90, 90))

    @pytest.mark.parametrize(
        ("travel", "warns"), [(4.9, False), (5.1, False), (9.9, False), (10.1, True), (40, True), (1e4, False)]
    )
    def test_millimetres(self, travel: float, warns: bool) -> None:
        """The last link of three, a third of the robot's mass, slides further than ten metres."""
        slide = f'<limit lower="0" upper="{travel}" effort="1" velocity="1"/>'
        sliding = link("l2", *SANE) + joint("j2", "l1", "l2", 0.5, "prismatic", slide)
        arm = link("l0", *SANE) + joint("j0", "base", "l0", 0.0) + link("l1", *SANE) + joint("j1", "l0", "l1", 0.5)
        text = (
            f"travels up to {travel:g} m, probably given in millimetres: no distance within a link is more than 0.5 m"
        )
        assert warning(robot_of(BASE, arm, sliding)) == ([("joint 'j2'", text)] if warns else [])


@pytest.mark.parametrize(("travel", "warns"), [(29.0, False), (31.0, True)])
def test_a_long_machine_may_slide_far(travel: float, warns: bool) -> None:
    """Ten times its longest distance, 3 m."""
    slide = f'<limit lower="0" upper="{travel}" effort="1" velocity="1"/>'
    beams = link("l0", 300.0, 300.0, 1.5) + joint("j0", "base", "l0", 0.0) + joint("j1", "l0", "l1", 3.0)
    hook = (
        link("l1", 300.0, 300.0, 1.5) + link("l2", 300.0, 300.0, 1.5) + joint("j2", "l1", "l2", 3.0, "prismatic", slide)
    )
    assert any("millimetres" in text for _, text in warning(robot_of(BASE, beams, hook))) == warns


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=100, deadline=None)
@given(st.lists(NUMBERS, min_size=12, max_size=12), NUMBERS.map(abs), NUMBERS.map(abs))
def test_any_numbers_are_measured(numbers: list[float], second_mass: float, third_mass: float) -> None:
    """No overflow, no division by zero (warnings are errors here), whatever finite numbers a file holds."""
    robot = chain(SANE, SANE, SANE, kind="prismatic", inner='<limit lower="0" upper="1"/>')
    links = []
    for link, mass, moments in zip(
        robot.links, (0.0, second_mass, third_mass, 1.0), np.reshape(numbers, (4, 3)), strict=True
    ):
        part = link.inertial
        if part is not None:
            part = replace(part, mass=mass, inertia=np.diag(moments), com=moments[::-1].copy())
        links.append(replace(link, inertial=part))
    joints = [replace(joint, xyz=np.array(numbers[:3])) for joint in robot.joints]
    assert all(text for _, text in warning(replace(robot, links=tuple(links), joints=tuple(joints))))


def test_lengths_that_no_double_holds_are_no_millimetres() -> None:
    """A distance that overflows is reported elsewhere; `up to inf m away` would not help."""

    def link(name: str, mass: float) -> str:
        inertia = '<inertia ixx="1" iyy="1.1" izz="1.2" ixy="0" ixz="0" iyz="0"/>'
        return f'<link name="{name}"><inertial><mass value="{mass}"/>{inertia}</inertial></link>'

    def joint(parent: str, child: str, xyz: str) -> str:
        ends = f'<parent link="{parent}"/><child link="{child}"/><origin xyz="{xyz}"/><axis xyz="0 0 1"/>'
        return f'<joint name="{child}" type="continuous">{ends}</joint>'

    for distance, warning in (("1e3 1e3 0", True), ("1.7e308 1.7e308 0", False)):
        links = link("a", 1.0) + link("b", 50.0) + link("c", 1.0)
        described = read_text(f'<robot name="r">{links}{joint("a", "b", "0 0 0")}{joint("b", "c", distance)}</robot>')
        assert any("probably given in millimetres" in note.text for note in described.notes) == warning


def test_a_robot_whose_lengths_are_all_of_links_without_mass() -> None:
    """Its size is the distance of its joints: nothing is divided by the zero that its bodies have."""
    inertia = '<inertia ixx="{0}" iyy="{0}" izz="{0}" ixy="0" ixz="0" iyz="0"/>'
    for moment, warning in ((0.01, False), (10.0, True)):
        massive = f'<inertial><mass value="1"/>{inertia.format(moment)}</inertial>'
        described = read_text(
            f'<robot name="r"><link name="a">{massive}</link><link name="b"/><link name="c">{massive}</link>'
            '<joint name="j" type="continuous"><parent link="a"/><child link="b"/><axis xyz="0 0 1"/></joint>'
            '<joint name="k" type="continuous"><parent link="b"/><child link="c"/><origin xyz="1 0 0"/>'
            '<axis xyz="0 0 1"/></joint></robot>'
        )
        notes = [note for note in described.notes if "too much inertia" in note.text]
        assert any(note.element == "link 'a'" for note in notes) == warning
