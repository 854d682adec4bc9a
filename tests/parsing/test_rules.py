"""The rules of `dyn check`: a file for each that fires it, a near miss that does not, and the table beside the docs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import trimesh

from dyn_service import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import Note
from dyn_service.parsing.files import read_file, read_text
from dyn_service.parsing.linter import claimed_mass, controller_findings, findings
from dyn_service.parsing.rules import RULES, location, repair_of, rule_of, selection
from dyn_service.support.documents import read_document

SIDE = """<link name="{0}_arm"><inertial><origin xyz="0 0 0.2"/><mass value="2"/>
<inertia ixx="0.03" ixy="0" ixz="0" iyy="0.03" iyz="0" izz="0.002"/></inertial>
<collision><origin xyz="0 0 0.2"/><geometry><box size="0.08 0.08 0.4"/></geometry></collision></link>
<joint name="{0}" type="revolute"><origin xyz="0 0.1 0" rpy="0 0 0"/><parent link="base"/><child link="{0}_arm"/>
<axis xyz="0 1 0"/><limit lower="-2" upper="2" effort="20" velocity="3"/><dynamics damping="0.1" friction="0.5"/>
</joint>
"""
INERTIAL = SIDE[SIDE.index("<inertial>") : SIDE.index("<collision>")]
BASE = """<link name="base"><inertial><origin/><mass value="5"/>
<inertia ixx="0.02" ixy="0" ixz="0" iyy="0.02" iyz="0" izz="0.02"/></inertial></link>
"""
LEFT, RIGHT = SIDE.format("left"), SIDE.format("right")
ARMS = f'<robot name="arms">\n{BASE}{LEFT}{RIGHT}</robot>\n'
INERTIA = 'ixx="0.03" ixy="0" ixz="0" iyy="0.03" iyz="0" izz="0.002"'
OFF_CENTRE = 'xyz="0 0 0.2"/><mass', 'xyz="0 0 0.35"/><mass'
WIDE_BOX = "0.08 0.08 0.4", "0.8 0.8 0.4"
MASS, BASE_MASS = '<mass value="2"/>', '<mass value="5"/>'
LIMIT = 'lower="-2" upper="2" effort="20" velocity="3"'
SLIDE = 'type="revolute"', 'type="prismatic"'
Change = tuple[str, str]


def moments(x: float, y: float, z: float) -> Change:
    return INERTIA, f'ixx="{x}" ixy="0" ixz="0" iyy="{y}" iyz="0" izz="{z}"'


def limit(lower: float, upper: float) -> Change:
    return LIMIT, f'lower="{lower}" upper="{upper}" effort="20" velocity="3"'


def after(text: str) -> Change:
    return "</robot>", f"{text}</robot>"


LEGS = '<link name="a_foot"/><joint name="a" type="revolute"><parent link="left_arm"/><child link="a_foot"/></joint>'
LEGS += LEGS.replace("left", "right").replace('"a', '"b')
SDF = '<sdf version="1.9"><model name="m">{}<link name="b"/></model></sdf>'
HELD = '<joint name="f" type="fixed"><parent>world</parent><child>b</child></joint>'
MIMIC = '<axis xyz="0 1 0"/>', '<axis xyz="0 1 0"/><mimic joint="{}" multiplier="{}"/>'
GEAR = """<transmission name="t"><joint name="{}"/><actuator name="m"><drake:rotor_inertia value="1e-5"/></actuator>
</transmission>"""
GEARBOX = """<sdf version="1.9"><model name="m"><link name="a"/><link name="b"/><link name="c"/>
<joint name="f" type="fixed"><parent>world</parent><child>a</child></joint>
<joint name="j" type="revolute"><parent>a</parent><child>b</child><axis><xyz>0 0 1</xyz></axis></joint>
<joint name="k" type="revolute"><parent>a</parent><child>c</child><axis><xyz>0 0 1</xyz></axis></joint>
{}</model></sdf>"""
COUPLED = """<joint name="g" type="gearbox"><parent>b</parent><child>c</child><gearbox_reference_body>a
</gearbox_reference_body><axis><xyz>0 0 1</xyz></axis><axis2><xyz>0 0 1</xyz></axis2></joint>"""

CASES: dict[str, tuple[list[Change], list[Change]]] = {
    # a + b >= c to 1e-3
    "impossible-inertia": ([moments(0.03, 0.03, 0.0602)], [moments(0.03, 0.03, 0.06)]),
    # a radius of gyration of 1e-6 m
    "point-mass": ([moments(1e-12, 1e-12, 1e-12)], [moments(3e-12, 3e-12, 3e-12)]),
    "inertia-without-mass": ([(MASS, '<mass value="0"/>')], [(MASS, '<mass value="0.1"/>')]),
    "stand-in-inertial": (
        [(MASS, '<mass value="1"/>'), moments(1, 1, 1), ('xyz="0 0 0.2"/><mass', 'xyz="0 0 0"/><mass')],
        [(MASS, '<mass value="1"/>'), moments(1, 1, 1)],
    ),
    "implausible-mass": ([(MASS, '<mass value="9e-7"/>')], [(MASS, '<mass value="1.1e-6"/>')]),
    "far-centre": (
        [('xyz="0 0 0.2"/><mass', 'xyz="0 0 10.1"/><mass')],
        [('xyz="0 0 0.2"/><mass', 'xyz="0 0 9.9"/><mass')],
    ),
    # 5 times the 0.2 m between frame and centre of mass
    "too-much-inertia": ([moments(2.02, 2.02, 2.02)], [moments(1.98, 1.98, 1.98)]),
    # a ball of 2 kg osmium: 1.843e-3 kg m^2
    "too-little-inertia": ([moments(6.1e-4, 6.1e-4, 6.1e-4)], [moments(6.2e-4, 6.2e-4, 6.2e-4)]),
    # 5 times 2 m r^2, r^2 = 0.1257 m^2 to the farthest corner: a trace of 2.514
    "inertia-beyond-shapes": ([OFF_CENTRE, moments(0.85, 0.85, 0.85)], [OFF_CENTRE, moments(0.83, 0.83, 0.83)]),
    # 0.05 times 2 m k^2, k^2 = 0.12 m^2: a trace of 0.024
    "inertia-below-shapes": ([WIDE_BOX, moments(7.8e-3, 7.8e-3, 7.8e-3)], [WIDE_BOX, moments(8.2e-3, 8.2e-3, 8.2e-3)]),
    "massless-link": ([(INERTIAL, "")], []),
    # 57.8 kg of osmium
    "mass-beyond-shapes": (
        [(MASS, '<mass value="58.5"/>'), moments(0.3, 0.3, 0.2)],
        [(MASS, '<mass value="57.5"/>'), moments(0.3, 0.3, 0.2)],
    ),
    "asymmetric-mass": ([(LEFT, LEFT.replace(MASS, '<mass value="0.39"/>'))],
                        [(LEFT, LEFT.replace(MASS, '<mass value="0.41"/>'))]),
    # the diagonal of the box is 0.4157 m, its upper end at z = 0.4 m
    "centre-outside-shapes": (
        [('xyz="0 0 0.2"/><mass', 'xyz="0 0 0.615"/><mass')],
        [('xyz="0 0 0.2"/><mass', 'xyz="0 0 0.6"/><mass')],
    ),
    "lengths-in-millimetres": (
        [('xyz="0 0 0.2"', 'xyz="0 0 200"'), ('xyz="0 0.1 0"', 'xyz="0 100 0"')],
        [('xyz="0 0 0.2"', 'xyz="0 0 2"'), ('xyz="0 0.1 0"', 'xyz="0 1 0"')],
    ),
    "masses-in-grams": ([(MASS, '<mass value="2000"/>')], [(MASS, '<mass value="20"/>')]),
    "limits-in-degrees": ([limit(-13, 13)], [limit(-12.5, 12.5)]),
    "travel-in-millimetres": ([SLIDE, limit(0, 10.5)], [SLIDE, limit(0, 9.5)]),
    "rpy-in-degrees": ([('rpy="0 0 0"', 'rpy="0 0 7"')], [('rpy="0 0 0"', 'rpy="0 0 6.28"')]),
    "far-joint": ([(BASE_MASS, '<mass value="50"/>'), (LEFT, LEFT.replace("0 0.1 0", "0 10.1 0"))],
                  [(BASE_MASS, '<mass value="50"/>'), (LEFT, LEFT.replace("0 0.1 0", "0 9.9 0"))]),
    "velocity-in-degrees": ([('velocity="3"', 'velocity="90"')], [('velocity="3"', 'velocity="89"')]),
    "negative-friction": ([('damping="0.1"', 'damping="-0.1"')], [('damping="0.1"', 'damping="0"')]),
    "crossed-limits": ([limit(2, 1)], [limit(1, 2)]),
    "locked-joint": ([limit(1, 1)], [limit(1, 1.001)]),
    "negative-limit": ([('effort="20"', 'effort="-1"')], [('effort="20"', 'effort="1"')]),
    "zero-limit": ([('velocity="3"', 'velocity="0"')], [('velocity="3"', 'velocity="0.01"')]),
    "friction-beyond-effort": ([('effort="20"', 'effort="0.5"')], [('effort="20"', 'effort="0.51"')]),
    "unfollowed-mimic": ([(RIGHT, RIGHT.replace(MIMIC[0], MIMIC[1].format("lft", 1)))],
                         [(RIGHT, RIGHT.replace(MIMIC[0], MIMIC[1].format("left", 1)))]),
    "still-mimic": ([(RIGHT, RIGHT.replace(MIMIC[0], MIMIC[1].format("left", 0)))],
                    [(RIGHT, RIGHT.replace(MIMIC[0], MIMIC[1].format("left", 0.1)))]),
    "disjoint-mimic": (
        [(RIGHT, RIGHT.replace(MIMIC[0], MIMIC[1].format("left", 1)).replace(*limit(2.1, 3)))],
        [(RIGHT, RIGHT.replace(MIMIC[0], MIMIC[1].format("left", 1)).replace(*limit(1.9, 3)))],
    ),
    "unused-rotor": ([after(GEAR.format("nobody"))], [after(GEAR.format("left"))]),
    "misspelt-name": ([("damping", "dampng")], [("damping", "hysteresis")]),
    "unexpanded-xacro": ([after("<xacro:arm/>")], [after('<xacro:arg name="a"/>')]),
    "fixed-legged-base": ([after(LEGS)], [after(LEGS.replace("_foot", "_hand"))]),
    "commented-floating-joint": ([after('<!-- <joint name="r" type="floating"/> -->')], [after("<!-- floating -->")]),
    "unheld-root": ([(ARMS, SDF.format(""))], [(ARMS, SDF.format(HELD))]),
    "unread-loop": ([(ARMS, GEARBOX.format(COUPLED))], [(ARMS, GEARBOX.format(""))]),
    "unknown-reference": ([after('<gazebo reference="lft"/>')], [after('<gazebo reference="left"/>')]),
}  # fmt: skip
"""Changes of `ARMS` that fire a rule, and those of a near miss; thresholds are met within a few percent."""

APART = {
    "claimed-mass": "test_claimed_mass", "mesh-in-millimetres": "test_meshes", "missing-mesh": "test_meshes",
    "unmirrored-link": "test_links_that_are_no_mirror_images",
    "open-loop": "test_loops_that_do_not_close", "unread-loop-file": "test_a_loop_file_that_is_not_read",
    "unknown-controller-joint": "test_controllers", "unreadable": "test_sarif_of_a_file_that_cannot_be_read",
    "uncompared-kernel": "test_a_kernel_without_finite_results", "inexact-kernel": "test_a_kernel_that_fails",
}  # fmt: skip
"""Rules with a test of their own, here, in tests/cli/test_check.py, tests/kernels or tests/engine."""


def changed(changes: list[Change]) -> str:
    text = ARMS
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def rules_of(text: str) -> dict[str, Note]:
    robot = Robot.from_text(text)
    notes = findings(robot.receipt.notes, robot.as_described, None)
    return {rule.name: note for note in notes if (rule := rule_of(note)) is not None}


def test_robots_without_mistakes_have_no_findings() -> None:
    assert rules_of(ARMS) == {}


def test_each_rule_has_a_test() -> None:
    assert {*CASES, *APART} == set(RULES)
    tests = "".join(path.read_text() for path in Path("tests").rglob("test_*.py") if path.name != "test_rules.py")
    assert all(f"def {name}" in tests or name in globals() for name in APART.values())


@pytest.mark.parametrize("name", CASES)
def test_rules(name: str) -> None:
    fires, near_miss = CASES[name]
    note = rules_of(changed(fires))[name]
    assert note.kind in ("warning", "loop")
    assert repair_of(note)
    assert name not in rules_of(changed(near_miss))


def test_edits_are_of_fixable_rules() -> None:
    fixable = {name for name, (fires, _) in CASES.items() if rules_of(changed(fires))[name].edits}
    assert fixable < {name for name, rule in RULES.items() if rule.fixable}


def test_masses_thinner_than_hydrogen() -> None:
    """A box of 0.8 x 0.8 x 8 m with 0.4 kg has 0.078 kg/m^3."""
    text = changed([("0.08 0.08 0.4", "0.8 0.8 8"), moments(0.1, 0.1, 0.1)])
    for mass, thin in ((0.4, True), (0.42, False)):
        assert ("mass-beyond-shapes" in rules_of(text.replace(MASS, f'<mass value="{mass}"/>'))) is thin


def legs(*changes: Change) -> str:
    """Returns a robot with four legs of which two are on the left; the changes are of the last one on the left."""
    parts = []
    for side, y in (("left", 0.1), ("right", -0.1)):
        for k in range(4):
            leg = SIDE.format(f"{side}_{k}").replace("0 0.1 0", f"{k} {y} 0")
            leg = leg.replace('xyz="0 0 0.2"/><mass', f'xyz="0 {y:g} 0.2"/><mass')
            for old, new in changes if (side, k) == ("left", 3) else ():
                assert old in leg
                leg = leg.replace(old, new)
            parts.append(leg)
    return f'<robot name="r">\n{BASE}{"".join(parts)}</robot>'


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([], ""),
        # copied from the right side; k is 0.125 m, half of it 0.062
        ([("3 0.1 0", "3 -0.1 0")], "0.2 m"),
        ([("0 0.1 0.2", "0 0.036 0.2")], "0.064 m"),
        ([("0 0.1 0.2", "0 0.04 0.2")], ""),
        ([(MASS, '<mass value="2.22"/>')], "mass 2.22 kg, 2 kg in 'right_3_arm': 3 of 4 pairs"),
        ([(MASS, '<mass value="2.18"/>')], ""),
    ],
)
def test_links_that_are_no_mirror_images(changes: list[Change], text: str) -> None:
    note = rules_of(legs(*changes)).get("unmirrored-link")
    assert ("" if note is None else note.element) == ("link 'left_3_arm'" if text else "")
    assert text in ("" if note is None else note.text)


def test_one_part_on_both_sides_is_no_mirror_image() -> None:
    """Arms of TALOS: the same mesh, mass and centre of mass on both sides."""
    copy = legs(("0 0.1 0.2", "0 -0.1 0.2"))
    assert "unmirrored-link" in rules_of(copy)
    mesh = '<mesh filename="elsewhere/{}.stl"/>'
    box = '<box size="0.08 0.08 0.4"/>'
    links = copy.split("<link ")
    for names, is_part in ((("arm", "arm"), True), (("left_arm", "right_arm"), False)):
        meshes = {"left_3": mesh.format(names[0]), "right_3": mesh.format(names[1])}
        parts = [next((x.replace(box, meshes[k]) for k in meshes if f'name="{k}_arm"' in x), x) for x in links]
        assert ("unmirrored-link" in rules_of("<link ".join(parts))) is not is_part


def test_the_root_may_be_beside_the_plane_of_symmetry() -> None:
    """Frames of the left legs are at other points of the joint's axis, y, so that only their centres are mirrored."""
    text = legs().replace("0.1 0", "0.3 0").replace("-0.1 0", "0.1 0")
    for k in range(4):
        text = text.replace(f"{k} 0.3 0", f"{k} 0.25 0").replace("0 0.1 0.2", "0 0.15 0.2")
    assert "unmirrored-link" not in rules_of(text)
    assert "unmirrored-link" in rules_of(text.replace("3 0.25 0", "3 0.1 0"))


def test_the_plane_of_symmetry_has_most_pairs() -> None:
    """Links in a row along z are mirror images by the planes of x and y, relative to their parents; legs by one."""
    text = legs()
    for side in ("left", "right"):
        for k in range(8):
            tip = SIDE.format(f"{side}_tip{k}").replace("0 0.1 0", "0 0 0.4")
            parent = f"{side}_tip{k - 1}_arm" if k else f"{side}_0_arm"
            text = text.replace("</robot>", f"{tip.replace('base', parent)}</robot>")
    assert "unmirrored-link" not in rules_of(text)


def test_a_moved_limb_is_one_finding() -> None:
    """Outboard links of a wrong joint are mirror images relative to their parents."""
    chain = legs(("3 0.1 0", "3 -0.1 0"))
    for side in ("left", "right"):
        for k in range(4):
            tip = SIDE.format(f"{side}_{k}_tip").replace('"base"', f'"{side}_{k}_arm"').replace("0 0.1 0", "0 0 0.4")
            chain = chain.replace("</robot>", f"{tip}</robot>")
    robot = Robot.from_text(chain)
    notes = findings(robot.receipt.notes, robot.as_described, None)
    assert [note.element for note in notes if note.rule == "unmirrored-link"] == ["link 'left_3_arm'"]


def test_claimed_mass() -> None:
    description = read_text(ARMS)
    assert [claimed_mass(description, mass) != [] for mass in (8.56, 8.58, 9.0, 9.45, 9.48)] == [
        True, False, False, False, True,
    ]  # fmt: skip


def box(path: Path, size: float) -> None:
    trimesh.creation.box((size, size, size)).export(path)


def mesh_rules(file: Path, mesh: str, scale: float = 1.0) -> dict[str, Note]:
    geometry = f'<mesh filename="{mesh}" scale="{scale} {scale} {scale}"/>'
    file.write_text(ARMS.replace('<box size="0.08 0.08 0.4"/>', geometry))
    description = read_file(file)
    return {note.rule: note for note in findings(description.notes, description, file.parent) if note.rule}


def test_meshes(tmp_path: Path) -> None:
    """Boxes of 40 cm about the centres of mass; joints are 0.1 m from the root, so that 10 m is the limit."""
    (tmp_path / "meshes").mkdir()
    box(tmp_path / "meshes" / "arm.stl", 0.4)
    box(tmp_path / "meshes" / "far.stl", 1.0)
    file = tmp_path / "arms.urdf"
    assert mesh_rules(file, "meshes/arm.stl") == {}
    assert "mesh-in-millimetres" not in mesh_rules(file, "meshes/far.stl", 5.7)
    assert set(mesh_rules(file, "meshes/far.stl", 5.8)) == {"mesh-in-millimetres"}
    missing = mesh_rules(file, "meshes/am.stl")
    assert set(missing) == {"missing-mesh"}
    assert "arm.stl" in missing["missing-mesh"].repair
    assert mesh_rules(file, "elsewhere/arm.stl") == mesh_rules(file, "package://nobody/arm.stl") == {}


def test_inertias_beside_meshes(tmp_path: Path) -> None:
    """Moments in kg mm^2 of a link with a mesh, and a mesh in inches, as Collada files may be."""
    box(tmp_path / "arm.stl", 0.4)
    text = changed([moments(3e4, 3e4, 2e3), ('<box size="0.08 0.08 0.4"/>', '<mesh filename="arm.stl"/>')])
    (tmp_path / "arms.urdf").write_text(text)
    description = read_file(tmp_path / "arms.urdf")
    notes = [note for note in findings(description.notes, description, tmp_path) if note.rule == "too-much-inertia"]
    assert [note.edits[0].factor for note in notes] == [1e-6, 1e-6]
    box(tmp_path / "arm.dae", 0.4 / 0.0254)
    dae = tmp_path / "arm.dae"
    assert "mesh-in-millimetres" in mesh_rules(tmp_path / "arms.urdf", "arm.dae")
    dae.write_text(dae.read_text().replace("<up_axis>", '<unit meter="0.0254" name="inch"/><up_axis>'))
    assert mesh_rules(tmp_path / "arms.urdf", "arm.dae") == {}


@pytest.mark.parametrize(
    ("edge", "contact", "moment", "rules"),
    [
        # a box of 0.4 m has at most 2 * 2 kg * 3 (0.2 m)^2 = 0.48 kg m^2 of trace
        ((0.4, 0.4, 0.4), "", 0.161, {"inertia-beyond-shapes"}),
        ((0.4, 0.4, 0.4), "", 0.159, set()),
        # 48 times those of the contact shape, within the mesh
        ((0.4, 0.4, 0.4), '<box size="0.1 0.1 0.1"/>', 0.159, set()),
        # those of the mesh, in a contact shape of a neighbour
        ((0.1, 0.1, 0.1), '<box size="0.1 0.1 1"/>', 0.0033, set()),
        ((0.4, 0.4, 0.4), "", 0.0026, {"inertia-below-shapes"}),
    ],
)
def test_meshes_beside_contact_shapes(
    tmp_path: Path, edge: tuple[float, float, float], contact: str, moment: float, rules: set[str]
) -> None:
    trimesh.creation.box(edge).export(tmp_path / "arm.stl")
    place = '<collision><origin xyz="0 0 0.2"/><geometry>{}</geometry></collision>'
    shapes = place.format('<mesh filename="arm.stl"/>') + (place.format(contact) if contact else "")
    text = changed([moments(moment, moment, moment), (place.format('<box size="0.08 0.08 0.4"/>'), shapes)])
    (tmp_path / "arms.urdf").write_text(text)
    description = read_file(tmp_path / "arms.urdf")
    notes = findings(description.notes, description, tmp_path)
    assert {note.rule for note in notes if note.rule} == rules


def test_controllers(tmp_path: Path) -> None:
    file = tmp_path / "controllers.yaml"
    file.write_text(
        "arm:\n  ros__parameters:\n    joints: [left, right_arm, wheel]\n    command_interfaces: [position]\n"
    )
    notes = controller_findings(read_document(file), read_text(ARMS))
    assert [(note.rule, note.text) for note in notes] == [
        ("unknown-controller-joint", "'right_arm' is no joint of robot 'arms'; did you mean 'right'?"),
        ("unknown-controller-joint", "'wheel' is no joint of robot 'arms'; the joints are left, right"),
    ]
    assert location(notes[0], "arms.urdf") == (str(file), 3, "arm.ros__parameters.joints")
    file.write_text(file.read_text().replace("right_arm, wheel", "right"))
    assert controller_findings(read_document(file), read_text(ARMS)) == []


def test_a_loop_file_that_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "arms.urdf").write_text(ARMS)
    assert Robot.from_file(tmp_path / "arms.urdf").receipt.of_kind("warning") == ()
    (tmp_path / "arms.loops.yaml").write_text("robot: arms\n")
    (note,) = Robot.from_file(tmp_path / "arms.urdf").receipt.of_kind("warning")
    assert note.rule == "unread-loop-file"


def test_repairs_name_the_joint_of_the_same_hand() -> None:
    hands = ARMS.replace('name="left"', 'name="l_q1"').replace('name="right"', 'name="r_q1"')
    tip = RIGHT.replace("right", "r_q2").replace('"base"', '"right_arm"').replace(MIMIC[0], MIMIC[1].format("q1", 1))
    note = rules_of(hands.replace("</robot>", f"{tip}</robot>"))["unfollowed-mimic"]
    assert note.repair == "follow 'r_q1'"


def test_names_in_the_code_are_rules() -> None:
    """Every rule is named at one place or more, and every name is a rule."""
    named = set()
    for path in Path("dyn_service").rglob("*.py"):
        if path.name == "rules.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in RULES:
                named.add(node.value)
    assert named == set(RULES) - {"unread-loop"}  # by its kind


def test_the_table_and_its_page() -> None:
    numbers = [rule.number for rule in RULES.values()]
    assert numbers == sorted(set(numbers))
    assert all(re.fullmatch(r"DYN[1-6]\d\d", number) for number in numbers)
    page = Path("docs/rules.md").read_text("utf-8")
    sections = dict(re.findall(r"^### (DYN\d+ [a-z-]+)\n\n((?:(?!^#).*\n)*)", page, re.MULTILINE))
    assert list(sections) == [f"{rule.number} {rule.name}" for rule in RULES.values()]
    for rule, text in zip(RULES.values(), sections.values(), strict=True):
        words = " ".join(text.split())
        assert words.startswith(rule.summary)
        assert rule.repair in words
        assert ("`--fix`" in words, "Error." in words) == (rule.fixable, rule.level == "error")


@pytest.mark.parametrize(
    ("select", "ignore", "kept"),
    [
        ([], [], {"locked-joint", "zero-limit"}),
        (["DYN303"], [], {"locked-joint"}),
        (["dyn3"], ["zero-limit"], {"locked-joint"}),
        ([], ["DYN3"], set()),
        (["DYN1"], [], set()),
    ],
)
def test_selection(select: list[str], ignore: list[str], kept: set[str]) -> None:
    notes = rules_of(changed([(LIMIT, 'lower="1" upper="1" effort="0" velocity="3"')]))
    passes = selection(select, ignore)
    assert {name for name, note in notes.items() if passes(note)} == kept
    assert passes(Note("dropped", "robot 'r'", "geometry"))


@pytest.mark.parametrize("entry", ["DYN9", "lockd-joint", ""])
def test_unknown_rules_are_refused(entry: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        selection([entry], [])
    assert caught.value.path == "select"


LIMITED = f"<limit {LIMIT}/>"
ARM_INERTIA = 'ixx="{0}" ixy="0" ixz="0" iyy="{0}" iyz="0" izz="{1}"'


def slipped(*factors: float) -> str:
    """Returns a robot with one arm for each factor, by which its moments are too large."""
    arms = (
        SIDE.format(f"arm{k}").replace(INERTIA, ARM_INERTIA.format(0.03 * factor, 0.002 * factor))
        for k, factor in enumerate(factors)
    )
    return f'<robot name="r">\n{BASE}{"".join(arms)}</robot>'


@pytest.mark.parametrize(
    ("factors", "repaired"),
    [
        ([1e3], [0]),
        ([1e3, 1e3, 1e6], [0, 1]),
        ([1e3, 1e6], []),
        ([1e4, 1e4], [0, 1]),  # kg cm^2 in most links, beside the base
        ([1e4, 1, 1], []),
        ([1e3, 50.0, 20.0], []),  # two links of three with another mistake: chance
    ],
)
def test_edits_that_other_links_contradict(factors: list[float], repaired: list[int]) -> None:
    """One file has one unit: the power of ten of most links, and none if two powers are equally frequent."""
    robot = Robot.from_text(slipped(*factors))
    notes = findings(robot.receipt.notes, robot.as_described, None)
    edits = {edit.name: edit.factor for note in notes for edit in note.edits}
    assert edits == pytest.approx({f"arm{k}_arm": 1.0 / factors[k] for k in repaired})


def test_moments_without_digits_are_not_scaled() -> None:
    """Moments of 100, 100 and 0, or of 30, are a placeholder, of 100, 100 and 7, or of 31, a slip."""
    for two, third, is_slip in ((100.0, 0.0, False), (100.0, 7.0, True), (30.0, 30.0, False), (31.0, 31.0, True)):
        text = changed([moments(two, two, third)])
        assert "too-much-inertia" in rules_of(text)
        assert bool(rules_of(text)["too-much-inertia"].edits) == is_slip


def test_one_mistake_is_one_finding() -> None:
    faint = rules_of(changed([(MASS, '<mass value="9e-7"/>'), moments(0, 0, 0)]))
    assert "implausible-mass" in faint
    assert "point-mass" not in faint
    wide = rules_of(changed([moments(300.0, 300.0, 20.0)]))
    assert "too-much-inertia" in wide
    assert "inertia-beyond-shapes" not in wide


@pytest.mark.parametrize(("kind", "in_grams"), [("fixed", False), ("revolute", True)])
def test_a_heavy_table_is_not_in_grams(kind: str, in_grams: bool) -> None:
    """2 t that stand in the world and that nothing shall push, as in benchmarks of tasks, beside correct links."""
    table = (
        '<link name="table"><inertial><mass value="2000"/><inertia ixx="9" ixy="0" ixz="0" iyy="9" iyz="0" izz="9"/>'
    )
    stand = f'<joint name="f" type="{kind}"><parent link="world"/><child link="table"/>{LIMITED}</joint>'
    robot = '<joint name="g" type="fixed"><parent link="world"/><child link="base"/></joint>'
    text = changed([after(f'{table}</inertial></link><link name="world"/>{stand}{robot}')])
    assert ("masses-in-grams" in rules_of(text)) == in_grams


@pytest.mark.parametrize(("height", "in_grams"), [(0.09, True), (0.11, False)])
def test_a_heavy_base_is_not_in_grams(height: float, in_grams: bool) -> None:
    """100 kg in a mobile base whose frame is in its middle, so that distances show no size; steel has 7850 kg/m^3."""
    shape = f'<visual><geometry><box size="0.36 0.36 {height}"/></geometry></visual></link>'
    text = changed([('<mass value="5"/>', '<mass value="100"/>'), ("<inertial><origin/>", "<inertial>")])
    text = text.replace("</link>", shape, 1).replace(MASS, '<mass value="0.5"/>').replace("0.02", "1")
    assert ("masses-in-grams" in rules_of(text)) == in_grams


@pytest.mark.parametrize(("arms", "in_degrees"), [(7, True), (8, False)])
def test_a_velocity_of_all_joints_is_a_placeholder(arms: int, in_degrees: bool) -> None:
    text = slipped(*[1.0] * arms).replace('velocity="3"', 'velocity="120"')
    assert ("velocity-in-degrees" in rules_of(text)) == in_degrees


def test_defaults_of_sdf_are_no_stand_ins() -> None:
    model = '<sdf version="1.9"><model name="m">\n<link name="a">{}</link></model></sdf>'
    unit = "<inertial><mass>1</mass><inertia><ixx>1</ixx><iyy>1</iyy><izz>1</izz></inertia></inertial>"
    assert "stand-in-inertial" not in rules_of(model.format(""))
    assert "stand-in-inertial" in rules_of(model.format(unit))
