"""Doubts: what can hardly be meant is kept and noted, and what can be meant is not."""

from __future__ import annotations

import pytest

from dyn_service.model.description import Description
from dyn_service.parsing.urdf.reader import read_text
from tests.phrases import unnamed

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


def notes(robot: Description) -> list[tuple[str, str, str, int]]:
    return [(note.kind, note.element, note.text, note.line) for note in robot.notes]


def moments(ixx: float, iyy: float, izz: float, ixy: float = 0.0) -> str:
    return f'<inertia ixx="{ixx}" ixy="{ixy}" ixz="0" iyy="{iyy}" iyz="0" izz="{izz}"/>'


@pytest.mark.parametrize(
    ("mass", "inertia", "values"),
    [
        ("1", moments(1, 2, 4), ["1", "2", "4", "principal", "moments"]),
        ("1", moments(1, -2, 2), ["-2", "1", "2", "principal", "negative"]),
        ("1", moments(-1, -2, -3), ["-3", "-2", "-1", "2", "principal", "negative"]),
        ("1", moments(1, 1, 1, 1.5), ["-0.5", "1", "2.5", "2", "principal", "negative"]),
        ("1", moments(0, 0, 0), ["1", "inertia", "point"]),
        ("1", moments(1e-20, 0, -1e-20), ["1", "inertia", "point"]),
        ("0.001", moments(1, 1, 1), ["31.6", "0.001", "gyration", "inertia"]),
        ("1e-9", moments(1e-12, 1e-12, 1e-12), ["1e-09", "1e-06", "mass", "less"]),
        ("2e5", moments(1e6, 1e6, 1e6), ["200000", "100000", "mass", "more"]),
    ],
)
def test_inertial(mass: str, inertia: str, values: list[str]) -> None:
    robot = two_links(PLAIN, inertial=f'<inertial><origin/><mass value="{mass}"/>{inertia}</inertial>')
    ((kind, element, text, line),) = notes(robot)
    assert (kind, element, unnamed(text, *values), line) == ("warning", "link 'arm'", [], 3)


@pytest.mark.parametrize(
    "inertia", [moments(1, 2, 3), moments(1, 2, 3.002), moments(0, 1, 1), moments(2, 2, 2, 1), moments(-1e-6, 1, 1)]
)
def test_possible_inertia_is_no_news(inertia: str) -> None:
    assert two_links(PLAIN, inertial=f'<inertial><origin/><mass value="1"/>{inertia}</inertial>').notes == ()


def test_largest_doubles_do_not_overflow() -> None:
    inertia = moments(1e308, 1e308, 1e308, 1e308)
    robot = two_links(PLAIN, inertial=f'<inertial><origin/><mass value="1e308"/>{inertia}</inertial>')
    assert [note.text for note in robot.notes] == [
        "mass 1e+308 kg is more than 100000 kg",
        "no body has these principal moments: of 0, 1e+308, inf kg m^2 the largest exceeds the others' sum",
    ]


def test_far_centre_of_mass() -> None:
    robot = two_links(PLAIN, inertial=f'<inertial><origin xyz="0 30 40"/><mass value="1"/>{INERTIA}</inertial>')
    assert notes(robot) == [("warning", "link 'arm'", "the centre of mass is 50 m from the link's origin", 3)]


def test_stand_in_of_urdfpy() -> None:
    robot = two_links(PLAIN, inertial=f'<inertial><origin/><mass value="1"/>{moments(1, 1, 1)}</inertial>')
    text = (
        "mass 1 kg and unit inertia at the link's origin are what urdfpy and urchin write for a link without "
        "<inertial>; if it has none, remove them"
    )
    assert notes(robot) == [("warning", "link 'arm'", text, 3)]


@pytest.mark.parametrize("inertial", [" ", f'<inertial><origin/><mass value="0"/>{moments(0, 0, 0)}</inertial>'])
def test_massless_moving_leaf(inertial: str) -> None:
    text = "joint 'j' moves no mass: forward dynamics is undefined"
    assert notes(two_links(PLAIN, inertial=inertial)) == [("warning", "link 'arm'", text, 3)]


def test_massless_fixed_link_is_no_news() -> None:
    assert two_links("<origin/>", "fixed", inertial=" ").notes == ()


def test_inertia_without_mass() -> None:
    robot = two_links("<origin/>", "fixed", f'<inertial><origin/><mass value="0"/>{INERTIA}</inertial>')
    assert notes(robot) == [("warning", "link 'arm'", "inertia without mass", 3)]


@pytest.mark.parametrize(("second", "warning"), [("fixed", False), ("continuous", True)])
def test_mass_further_out(second: str, warning: bool) -> None:
    """A link without mass may move if mass is welded to it; if mass hangs on it by another joint, that is said."""
    robot = read_text(
        '<robot name="r"><link name="a"/>\n<link name="b"/><link name="c">'
        f'<inertial><origin/><mass value="1"/>{INERTIA}</inertial></link>'
        '<joint name="j" type="continuous"><origin/><parent link="a"/><child link="b"/><axis xyz="1 0 0"/></joint>'
        f'<joint name="k" type="{second}"><origin/><parent link="b"/><child link="c"/><axis xyz="0 1 0"/></joint>'
        "</robot>"
    )
    text = "joint 'j' moves this link, and neither it nor the links welded to it have mass"
    assert notes(robot) == ([("warning", "link 'b'", text, 2)] if warning else [])


@pytest.mark.parametrize(
    ("inner", "values"),
    [
        ('<limit lower="1" upper="-1"/>', ["1", "-1", "lower", "limit"]),
        ('<limit lower="0" upper="0"/>', ["0", "lower", "cannot"]),
        ('<limit lower="0" upper="1" effort="-1"/>', ["effort limit -1 is negative"]),
        ('<limit lower="0" upper="1" velocity="-2"/>', ["velocity limit -2 is negative"]),
        ('<limit lower="0" upper="1"/><dynamics damping="-3"/>', ["-3", "damping", "negative"]),
        ('<limit lower="0" upper="1"/><dynamics friction="-4"/>', ["-4", "friction", "negative"]),
    ],
)
def test_joint(inner: str, values: list[str]) -> None:
    robot = two_links(f'<origin/><axis xyz="1 0 0"/>{inner}')
    ((_, element, text, line),) = [note for note in notes(robot) if note[0] == "warning"]
    assert (element, unnamed(text, *values), line) == ("joint 'j'", [], 7)


def test_mimic_of_a_joint_that_does_not_exist() -> None:
    """Real files have it, and there is nobody to follow: noted, not refused."""
    robot = two_links(f'{PLAIN}<mimic joint="k"/>')
    assert (
        "warning",
        "joint 'j'",
        "mimics joint 'k', which the robot does not have: the mimic is ignored",
        7,
    ) in notes(robot)


@pytest.mark.parametrize(
    ("mass", "com", "moment", "doubt"),
    [
        (1.01e-6, 0.0, 1e-12, None),
        (0.99e-6, 0.0, 1e-12, "mass 9.9e-07 kg is less than 1e-06 kg"),
        (0.99e5, 0.0, 1e6, None),
        (1.01e5, 0.0, 1e6, "mass 101000 kg is more than 100000 kg"),
        (1.0, 9.9, 0.1, None),
        (1.0, -10.1, 0.1, "the centre of mass is 10.1 m from the link's origin"),
        (2.0, 0.0, 2.0 * 9.9**2, None),
        (2.0, 0.0, 2.0 * 10.1**2, "the radius of gyration is 10.1 m: too much inertia for 2 kg"),
        (
            2.0,
            0.0,
            2.0 * 1.1e-6**2,
            "too little inertia for 2 kg: even a ball would need 9.08e+16 kg/m^3, and the densest matter has 22590",
        ),
        (2.0, 0.0, 2.0 * 0.9e-6**2, "mass 2 kg and no inertia: a point mass"),
    ],
)
def test_doubts_begin_where_they_say(mass: float, com: float, moment: float, doubt: str | None) -> None:
    inertia = f'<inertia ixx="{moment}" ixy="0" ixz="0" iyy="{moment}" iyz="0" izz="{moment}"/>'
    text = f'<inertial><origin xyz="0 {com} 0"/><mass value="{mass}"/>{inertia}</inertial>'
    read_notes = read_text(f'<robot name="r"><link name="a">{text}</link></robot>').notes
    assert [note.text for note in read_notes if note.kind == "warning"] == ([] if doubt is None else [doubt])


def test_what_is_just_at_a_bound_is_not_beyond_it() -> None:
    for mass, com, moment in ((1e5, 0.0, 1e6), (1e-6, 0.0, 1e-12), (1.0, 10.0, 0.1), (1.0, 0.0, 100.0)):
        inertia = f'<inertia ixx="{moment}" ixy="0" ixz="0" iyy="{moment}" iyz="0" izz="{moment}"/>'
        text = f'<inertial><origin xyz="0 {com} 0"/><mass value="{mass}"/>{inertia}</inertial>'
        read_notes = read_text(f'<robot name="r"><link name="a">{text}</link></robot>').notes
        assert [note.text for note in read_notes if note.kind == "warning"] == []


@pytest.mark.parametrize(("kind", "warning"), [("revolute", True), ("prismatic", True), ("continuous", False)])
@pytest.mark.parametrize("limit", ['lower="1" upper="-1"', 'lower="0" upper="0"'])
def test_a_range_of_a_joint_that_turns_on_says_nothing(kind: str, warning: bool, limit: str) -> None:
    robot = two_links(f'<origin/><axis xyz="1 0 0"/><limit {limit}/>', kind)
    assert any("limit" in note.text for note in robot.notes if note.kind == "warning") == warning


def test_where_nothing_weighs_no_centre_of_mass_is_far() -> None:
    inertial = f'<inertial><origin xyz="0 30 40"/><mass value="0"/>{moments(0, 0, 0)}</inertial>'
    assert two_links("<origin/>", "fixed", inertial=inertial).notes == ()


@pytest.mark.parametrize("third", ["fixed", "continuous"])
def test_mass_counts_through_links_that_have_none(third: str) -> None:
    """Only the last of four links has mass: welded on through the third, or hanging beyond it."""
    mass = f'<inertial><origin/><mass value="1"/>{INERTIA}</inertial>'
    joints = "".join(
        f'<joint name="{child}" type="{kind}"><origin/><parent link="{parent}"/><child link="{child}"/>'
        '<axis xyz="1 0 0"/></joint>'
        for parent, child, kind in (("a", "b", "continuous"), ("b", "c", "fixed"), ("c", "d", third))
    )
    links = f'<link name="a"/><link name="b"/><link name="c"/><link name="d">{mass}</link>'
    read_notes = read_text(f'<robot name="r">{links}{joints}</robot>').notes
    expected = ["joint 'b' moves this link, and neither it nor the links welded to it have mass"]
    assert [note.text for note in read_notes if note.kind == "warning"] == ([] if third == "fixed" else expected)


def shaped(shape: str, moments_of_1_kg: tuple[float, float, float], factor: float, elements: str = "") -> str:
    """A robot of two links: `a`, of 2 kg, has a shape; `b` is beyond it."""
    values = (factor * 2.0 * moment for moment in moments_of_1_kg)
    inertia = '<inertia ixx="{:.4g}" ixy="0" ixz="0" iyy="{:.4g}" iyz="0" izz="{:.4g}"/>'.format(*values)
    return f"""<robot name="r"><link name="a"><inertial><origin xyz="0 0 0.1" rpy="1 0 0"/><mass value="2"/>{inertia}
    </inertial><collision><origin xyz="0 0 0.1" rpy="1 0 0"/><geometry>{shape}</geometry></collision>{elements}</link>
    <link name="b"><inertial><origin/><mass value="1"/>{INERTIA}</inertial></link><joint name="j" type="continuous">
    <origin xyz="0 0 0.3"/><parent link="a"/><child link="b"/><axis xyz="0 1 0"/></joint></robot>"""


SHAPES = {
    '<box size="0.2 0.3 0.4"/>': (0.25 / 12, 0.2 / 12, 0.13 / 12),
    '<cylinder radius="0.1" length="0.4"/>': (0.01 / 4 + 0.16 / 12, 0.01 / 4 + 0.16 / 12, 0.01 / 2),
    '<sphere radius="0.2"/>': (0.016, 0.016, 0.016),
}
MESH = '<visual><geometry><mesh filename="m.stl"/></geometry></visual>'


@pytest.mark.parametrize("factor", [0.1, 1.0, 1.9, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_moments_beyond_those_of_the_shape(shape: str, factor: float) -> None:
    kind = shape[1:].split()[0]
    warnings = [note.text for note in read_text(shaped(shape, SHAPES[shape], factor)).notes if "fill" in note.text]
    assert warnings == [
        f"its moments of inertia are {factor:g} times those of 2 kg that fill its {kind} evenly: "
        "probably too much inertia"
    ] * (factor >= 2.0)


@pytest.mark.parametrize(("factor", "warns"), [(2.0, False), (9.8, False), (10.0, True)])
def test_shapes_beside_a_mesh_may_be_a_part(factor: float, warns: bool) -> None:
    shape = next(iter(SHAPES))
    notes = read_text(shaped(shape, SHAPES[shape], factor, MESH)).notes
    assert any("fill" in note.text for note in notes) == warns


def test_shapes_elsewhere_say_nothing() -> None:
    """A centre of mass outside: 0.2 of the radius of gyration, sqrt(0.58 / 24) m, is 0.031 m."""
    shape = next(iter(SHAPES))
    text = shaped(shape, SHAPES[shape], 4.0)
    for shift, warns in (("0 0.03 0.1", True), ("0 0.033 0.1", False)):
        notes = read_text(text.replace('<inertial><origin xyz="0 0 0.1"', f'<inertial><origin xyz="{shift}"')).notes
        assert any("fill" in note.text for note in notes) == warns
    light = text.replace('<mass value="1"/>', '<mass value="250"/>')
    assert not any("fill" in note.text for note in read_text(light).notes)


@pytest.mark.parametrize(
    "shape",
    [
        '<box size="0 0 0"/>',
        '<box size="1e-100 1e-100 1e-100"/>',
        '<box size="1e200 1e200 1e200"/>',
        '<sphere radius="-1"/>',
    ],
)
def test_shapes_without_a_volume_say_nothing(shape: str) -> None:
    assert not any("fill" in note.text for note in read_text(shaped(shape, (0.01, 0.01, 0.01), 1.0)).notes)


@pytest.mark.parametrize(("intact", "other"), [("l_hip", "r_hip"), ("left_hip", "right_hip"), ("HipL", "HipR")])
def test_an_impossible_inertia_is_compared_with_the_other_side(intact: str, other: str) -> None:
    """Both have the same mass, one has no inertia."""
    inertial = '<inertial><origin/><mass value="2"/>{}</inertial>'
    links = "".join(
        f'<link name="{name}">{inertial.format(inertia)}</link>'
        for name, inertia in ((intact, moments(0.01, 0.02, 0.025)), (other, moments(0, 0, 0)))
    )
    joint = '<joint name="{0}_j" type="fixed"><origin/><parent link="a"/><child link="{0}"/></joint>'
    notes = read_text(
        f'<robot name="r"><link name="a"/>{links}{joint.format(intact)}{joint.format(other)}</robot>'
    ).notes
    contrast = f"; '{intact}', with the same mass, has principal moments 0.01, 0.02, 0.025 kg m^2"
    assert [note.text for note in notes if note.kind == "warning"] == [
        "mass 2 kg and no inertia: a point mass" + contrast * ("_" in intact)
    ]
