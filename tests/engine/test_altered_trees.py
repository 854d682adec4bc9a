"""Overlays on trees, without kernels: trees with the numbers of overlays, and overlays from differences of trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from dyn_service.api.queries import Inertial, JointNumbers, Overlay, Payload
from dyn_service.engine.altered_trees import AlteredTrees, overlay_to, with_overlay, with_payload
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.model.building import tree_of
from dyn_service.model.composite import weld
from dyn_service.model.description import Description, rooted
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read_text
from tests.phrases import naming


def link(name: str, mass: float) -> str:
    body = f'<inertial><origin xyz="0.1 0 0"/><mass value="{mass}"/>' if mass else ""
    inertia = '<inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0" ixz="0" iyz="0"/></inertial>' if mass else ""
    return f'<link name="{name}">{body}{inertia}</link>'


def joint(name: str, kind: str, parent: str, child: str, xyz: str = "0 0 1", extra: str = "") -> str:
    limit = '<limit lower="-1" upper="1" effort="9" velocity="9"/>'
    return (
        f'<joint name="{name}" type="{kind}"><origin xyz="{xyz}"/><parent link="{parent}"/><child link="{child}"/>'
        f'<axis xyz="0 0 1"/>{"" if kind == "fixed" else limit}{extra}</joint>'
    )


def described(multiplier: float = 2.0, tool: float = 0.5, turn_xyz: str = "0 0 1") -> Description:
    """A base, an arm with a tool welded to it, a slide, and a gear that follows the arm's joint at 2 q + 0.3."""
    mimic = f'<mimic joint="turn" multiplier="{multiplier}" offset="0.3"/>'
    return read_text(
        '<robot name="r">'
        + link("base", 1.0)
        + link("arm", 2.0)
        + link("tool", tool)
        + link("sled", 3.0)
        + link("gear", 1.0)
        + joint("turn", "revolute", "base", "arm", turn_xyz)
        + joint("weld", "fixed", "arm", "tool", "0.5 0 0")
        + joint("slide", "prismatic", "arm", "sled")
        + joint("follow", "revolute", "base", "gear", extra=mimic)
        + "</robot>"
    )


def trees(description: Description, **numbers: Mapping[str, float]) -> AlteredTrees:
    """Returns the trees of a description whose joints have these numbers, by property, then by joint."""
    joints = [
        replace(joint_, **{part: values[joint_.name] for part, values in numbers.items() if joint_.name in values})
        for joint_ in description.joints
    ]
    tree = tree_of(replace(description, joints=tuple(joints)))
    return AlteredTrees(tree, weld(tree), np.array([0.0, 0.0, -9.81]))


def overlaid_trees(overlay: Overlay, base_trees: AlteredTrees | None = None) -> AlteredTrees:
    base_trees = base_trees or trees(described())
    return with_overlay(base_trees.tree, base_trees.weld, overlay, "overlay")


def index(tree: Tree, name: str) -> int:
    return tree.links.index(name)


def test_a_payload_is_added_about_the_common_centre() -> None:
    """2 kg at 0.1 m and 2 kg at 0.3 m are 4 kg at 0.2 m with 2 * 0.1^2 of each across; then with the tool."""
    overlaid = overlaid_trees(Overlay(Payload("arm", 2.0, (0.3, 0.0, 0.0), np.diag([0.01, 0.01, 0.02]))))
    arm = overlaid.tree.inertia[index(overlaid.tree, "arm")]
    assert arm.mass == 4.0
    # One rounding each: sums of two bodies whose numbers are not doubles.
    np.testing.assert_allclose(arm.com, [0.2, 0.0, 0.0], atol=1e-16)
    np.testing.assert_allclose(arm.about_com, np.diag([0.03, 0.08, 0.1]), atol=1e-16)
    body = overlaid.weld.tree.inertia[overlaid.weld.tree.links.index("arm")]
    assert body.mass == 4.5
    np.testing.assert_allclose(body.com, [(4.0 * 0.2 + 0.5 * 0.6) / 4.5, 0.0, 0.0], atol=1e-15)
    assert overlaid.gravity is None
    base_trees = trees(described())
    with_arm_payload = with_payload(
        base_trees.tree, base_trees.weld, Payload("arm", 2.0, (0.3, 0.0, 0.0), np.diag([0.01, 0.01, 0.02])), "p"
    )
    assert with_arm_payload.weld.tree.fingerprint == overlaid.weld.tree.fingerprint
    assert with_arm_payload.tree.fingerprint == overlaid.tree.fingerprint


def test_payloads_are_added_to_the_inertial_of_the_overlay() -> None:
    overlaid = overlaid_trees(Overlay([Payload("sled", 1.0), Payload("sled", 2.0)], {"sled": Inertial(5.0)}))
    assert overlaid.tree.inertia[index(overlaid.tree, "sled")].mass == 8.0
    assert overlaid.weld.tree.inertia[overlaid.weld.tree.links.index("sled")].mass == 8.0


def test_joint_numbers_are_applied_to_their_joint() -> None:
    """For each property. The rest of a mimic joint is relative to its position with the mimicked joint at zero."""
    numbers = {"damping": 1.0, "friction": 2.0, "friction_width": 3.0, "armature": 4.0, "stiffness": 5.0, "rest": 6.0}
    for name, rest in (("turn", 6.0), ("slide", 6.0), ("follow", 5.7)):
        overlaid = overlaid_trees(Overlay(joints={name: JointNumbers(**numbers)})).tree  # type: ignore[arg-type]
        base_tree = trees(described()).tree
        k = overlaid.moving_joints.index(name)
        values = [array[k] for array in overlaid.passive.arrays]
        # The rest of the mimic joint is divided by the multiplier and shifted, which rounds.
        np.testing.assert_allclose(values, [1.0, 2.0, 3.0, 4.0, 5.0, rest], rtol=1e-15)
        for array, base_array in zip(overlaid.passive.arrays, base_tree.passive.arrays, strict=True):
            np.testing.assert_array_equal(np.delete(array, k), np.delete(base_array, k))
    both_overlaid = overlaid_trees(
        Overlay(joints={"turn": JointNumbers([1.0, 2.0]), "slide": JointNumbers([[3.0]])})
    ).tree
    assert both_overlaid.passive.damping[..., both_overlaid.moving_joints.index("turn")].tolist() == [[1.0, 2.0]]
    assert both_overlaid.passive.damping[..., both_overlaid.moving_joints.index("slide")].tolist() == [[3.0, 3.0]]


def test_locked_joints_have_no_passive_forces() -> None:
    damped = trees(described(), damping={"turn": 1.0, "slide": 2.0, "follow": 3.0})
    overlaid = overlaid_trees(Overlay(locked=["turn"]), damped)
    assert overlaid.tree.locked_joints == overlaid.weld.tree.locked_joints == {"turn"}
    by_name = dict(zip(overlaid.tree.moving_joints, overlaid.tree.passive.damping.tolist(), strict=True))
    assert by_name == {"turn": 0.0, "slide": 2.0, "follow": 0.0}


EDGES: list[tuple[Any, bool]] = [
    (np.diag([1.0, 1.0, 2.0 + 1.9e-3]), True),  # the second moment along z is -0.95e-3 of the largest
    (np.diag([1.0, 1.0, 2.0 + 4.5e-3]), False),
    (50.0 * np.diag([1.0, 1.0, 2.0 + 1.9e-3]), True),
    (50.0 * np.diag([1.0, 1.0, 2.0 + 4.5e-3]), False),
    (np.diag([1.0, 0.5, 0.5 - 0.9e-3]), True),
    (np.diag([1.0, 0.5, 0.5 - 2.2e-3]), False),
    (np.array([[1.0, 0.1 + 5e-13, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.0]]), True),
    (np.array([[1.0, 0.1 + 5e-12, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.0]]), False),
    (1e6 * np.array([[1.0, 0.1 + 5e-13, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.0]]), True),
    (np.zeros((3, 3)), True),
    (1e-300 * np.eye(3), True),
    (1e90 * np.eye(3), True),
    ([np.eye(3), np.zeros((3, 3))], True),
    ([np.eye(3), np.diag([1.0, 1.0, 2.1])], False),
]


@pytest.mark.parametrize(("inertia", "is_accepted"), EDGES, ids=range(len(EDGES)))
def test_physically_possible_inertias_are_accepted(inertia: Any, is_accepted: bool) -> None:
    """Deviations of three printed digits and of the rounding of a rotated inertia are accepted, larger ones refused."""
    overlay = Overlay(links={"sled": Inertial(inertia=inertia)})
    if is_accepted:
        overlaid = overlaid_trees(overlay).tree
        np.testing.assert_array_equal(overlaid.inertia[index(overlaid, "sled")].about_com, inertia)
        return
    with pytest.raises(InvalidArgumentError) as error:
        overlaid_trees(overlay)
    assert error.value.path == "overlay.links.sled.inertia"


def test_bodies_beyond_the_range_of_doubles() -> None:
    for overlay, place in (
        (Overlay(Payload("sled", 1e60, (1e30, 0.0, 0.0))), "overlay.payloads"),
        (Overlay(links={"sled": Inertial(1e60, (1e30, 0.0, 0.0))}), "overlay.links.sled"),
        (Overlay([Payload("sled", 1.0), Payload("sled", 1e200, (1e200, 0.0, 0.0))]), "overlay.payloads[1]"),
    ):
        with pytest.raises(InvalidArgumentError, match="about the link's origin is") as error:
            overlaid_trees(overlay)
        assert error.value.path == place


def test_the_overlay_of_others_contains_the_differences() -> None:
    """Masses, dampings and rest positions along an axis; the rest position of a mimic joint as in its own file."""
    base_trees = trees(described())
    first = trees(described(), damping={"turn": 1.0}, rest={"follow": 0.7}, stiffness={"follow": 4.0})
    second = trees(described(tool=0.75), rest={"follow": 0.2, "slide": -0.5}, stiffness={"slide": 2.0})
    overlay = overlay_to(base_trees, [first, second])
    assert list(overlay.links) == ["tool"]
    assert overlay.links["tool"].mass.tolist() == [0.5, 0.75]  # type: ignore[union-attr]
    assert overlay.links["tool"].com is overlay.links["tool"].inertia is None
    values = {
        name: {
            field.name: value.tolist()
            for field in fields(joint_numbers)
            if (value := getattr(joint_numbers, field.name)) is not None
        }
        for name, joint_numbers in overlay.joints.items()
    }
    assert values["turn"] == {"damping": [1.0, 0.0]}
    assert values["slide"] == {"rest": [0.0, -0.5], "stiffness": [0.0, 2.0]}
    assert values["follow"]["stiffness"] == [4.0, 0.0]
    np.testing.assert_allclose(values["follow"]["rest"], [0.7, 0.2], rtol=1e-15)
    assert overlay.gravity is None
    assert overlay.locked == ()
    overlaid = overlaid_trees(overlay, base_trees)
    for k, other in enumerate((first, second)):
        np.testing.assert_allclose(overlaid.tree.robot_at((k,)).passive.rest, other.tree.passive.rest, atol=1e-16)
        assert overlaid.weld.tree.robot_at((k,)).inertia[0].mass == other.weld.tree.inertia[0].mass
    lighter = base_trees._replace(gravity=np.array([0.0, 0.0, -1.6]))
    assert overlay_to(base_trees, [lighter]).gravity.tolist() == [[0.0, 0.0, -1.6]]  # type: ignore[union-attr]


def test_robots_that_no_overlay_can_express_are_refused() -> None:
    base_trees = trees(described())
    locked, sliding = (
        overlaid_trees(Overlay(locked=[name]), base_trees)._replace(gravity=base_trees.gravity)
        for name in ("turn", "slide")
    )
    batched = overlaid_trees(Overlay(Payload("arm", [1.0, 2.0])), base_trees)._replace(gravity=base_trees.gravity)
    cases: list[tuple[AlteredTrees, list[AlteredTrees], str, str]] = [
        (base_trees, [trees(described(multiplier=3.0))], r"joint 'follow' \(type revolute\) has another type", "[0]"),
        (base_trees, [base_trees, trees(described(turn_xyz="0 0 2"))], "joint 'turn' has another origin", "[1]"),
        (base_trees, [base_trees, trees(described(tool=0.0))], "link 'tool' of robot 'r' has no mass in some", ""),
        (base_trees, [base_trees, batched], r"numbers have leading axes \(2,\)", "[1]"),
        (base_trees, [locked, base_trees], "joint 'turn' is not locked, unlike that of 'r'", "[1]"),
        (base_trees, [base_trees, locked], "joint 'turn' is locked, unlike that of 'r'", "[1]"),
        (base_trees, [locked, sliding], "joint 'slide' is locked, unlike that of 'r'", "[1]"),
        (locked, [base_trees], "its joint 'turn' is not locked", "[0]"),
    ]
    for base, targets, why, place in cases:
        with pytest.raises(InvalidArgumentError, match=why) as error:
            overlay_to(base, targets)
        assert error.value.path == f"others{place}"
    massless = trees(described(tool=0.0))
    inertial = overlay_to(massless, [base_trees, base_trees]).links["tool"]
    assert inertial.mass.tolist() == [0.5, 0.5]  # type: ignore[union-attr]
    with pytest.raises(InvalidArgumentError, match=naming("'tool'", "'r'", "mass")):
        overlay_to(massless, [base_trees, massless])
    for same_trees in (base_trees, massless):
        same = overlay_to(same_trees, [same_trees])
        assert (same.links, same.joints, same.locked, same.gravity) == ({}, {}, (), None)


def test_the_overlay_of_locked_robots_contains_only_the_lock() -> None:
    """Not the passive properties of locked joints; and only locks that this robot does not have."""
    damped = trees(described(), damping={"turn": 1.0, "slide": 2.0, "follow": 3.0})
    locked = overlaid_trees(Overlay(locked=["turn"]), damped)._replace(gravity=damped.gravity)
    overlay = overlay_to(damped, [locked, locked])
    assert (overlay.locked, overlay.joints) == (("turn",), {})
    both_locked = overlaid_trees(Overlay(locked=["slide"]), locked)._replace(gravity=damped.gravity)
    assert overlay_to(locked, [both_locked]).locked == ("slide",)
    assert overlay_to(damped, []).locked == ()


def test_one_number_for_a_joint_with_several_degrees_of_freedom() -> None:
    floating = rooted(described(), "floating")
    base_trees = trees(floating)
    (root,) = [name for name in base_trees.tree.moving_joints if name not in ("turn", "slide", "follow")]
    overlaid = overlaid_trees(Overlay(joints={root: JointNumbers(damping=2.0, friction_width=[0.1, 0.2])}), base_trees)
    assert overlaid.tree.passive.damping[:6].tolist() == [2.0] * 6
    assert overlaid.tree.passive.damping[6:].tolist() == [0.0] * 3
    assert overlaid.tree.passive.width[..., :6].tolist() == [[0.1] * 6, [0.2] * 6]
    for part in ("stiffness", "armature"):
        with pytest.raises(InvalidArgumentError) as error:
            overlaid_trees(Overlay(joints={root: JointNumbers(**{part: 1.0})}), base_trees)
        assert error.value.path == f"overlay.joints.{root}.{part}"
    for name in ("nothing", "weld"):
        with pytest.raises(NotFoundError, match=f"has no joint '{name}' that moves"):
            overlaid_trees(Overlay(joints={name: JointNumbers(1.0)}), base_trees)
