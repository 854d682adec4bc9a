"""Ground reactions of real robots on their feet against Pinocchio: its inverse dynamics with our forces, the least
forces from its Jacobians, and its dynamics of rigid contacts under our efforts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pinocchio as pin
import pytest

from dyn_service import Contact
from dyn_service.engine.robot import Robot
from dyn_service.model import composite
from tests.oracle.example_robots import SOME, SUPPORTED, path_of
from tests.terms.interpreting import interpreted_robot
from tests.wide import wide

TOLERANCE = 1e-10
STATES = 3


class Flying:
    """A robot with a free flyer in Pinocchio."""

    def __init__(self, path: Path) -> None:
        self.model = pin.buildModelFromUrdf(str(path), pin.JointModelFreeFlyer())
        self.data = self.model.createData()

    def position(self, q: np.ndarray) -> np.ndarray:
        """q as Pinocchio takes it: continuous joints as cosine and sine."""
        entries = list(q[:7])
        for joint, value in zip(self.model.joints[2:], q[7:], strict=True):
            entries += [value] if joint.nq == 1 else [np.cos(value), np.sin(value)]
        return np.array(entries)

    def frame(self, link: str) -> int:
        return self.model.getFrameId(link, pin.FrameType.BODY)

    def jacobian(self, q: np.ndarray, contacts: list[Contact]) -> np.ndarray:
        """(3 nc, nv), of the contact points, world axes."""
        x = self.position(q)
        pin.computeJointJacobians(self.model, self.data, x)
        pin.updateFramePlacements(self.model, self.data)
        rows = []
        for contact in contacts:
            frame = self.frame(contact.link)
            J = pin.getFrameJacobian(self.model, self.data, frame, pin.LOCAL_WORLD_ALIGNED)
            from_link = self.data.oMf[frame].rotation @ np.asarray(contact.point)
            rows.append(J[:3] - pin.skew(from_link) @ J[3:])
        return np.vstack(rows)

    def efforts(
        self, q: np.ndarray, v: np.ndarray, a: np.ndarray, contacts: list[Contact], f: np.ndarray
    ) -> np.ndarray:
        """rnea with these forces, world axes, as external ones."""
        x = self.position(q)
        pin.framesForwardKinematics(self.model, self.data, x)
        acting = pin.StdVec_Force()
        acting.extend([pin.Force.Zero() for _ in self.model.joints])
        for contact, force in zip(contacts, f, strict=True):
            frame = self.model.frames[self.frame(contact.link)]
            local = self.data.oMf[self.frame(contact.link)].rotation.T @ force
            wrench = pin.Force(local, np.cross(contact.point, local))
            acting[frame.parentJoint] = acting[frame.parentJoint] + frame.placement.act(wrench)
        return pin.rnea(self.model, self.data, x, v, a, acting).copy()

    def mass_matrix(self, q: np.ndarray) -> np.ndarray:
        upper = np.triu(pin.crba(self.model, self.data, self.position(q)))
        return upper + np.triu(upper, 1).T


def feet_of(robot: Robot) -> list[str]:
    """Up to four links at the ends of branches, far from each other in the tree."""
    parents = set(robot.tree.parent)
    leaves = [link for i, link in enumerate(robot.link_names) if i not in parents and robot.bodies.body[i] > 0]
    named = [link for link in leaves if "foot" in link.lower() or "sole" in link.lower()] or leaves
    moving: dict[int, str] = {}
    for link in named:
        moving.setdefault(robot.bodies.body[robot.link_names.index(link)], link)
    found = list(moving.values())
    return [found[k] for k in np.unique(np.linspace(0, len(found) - 1, 4).round().astype(int))] if found else []


FLYING = [name for name in SUPPORTED if '"floating"' not in path_of(name).read_text()]


def made(name: str) -> tuple[Robot, Flying]:
    robot = interpreted_robot(Robot.from_urdf(path_of(name), root="floating", mimic=False))
    return robot.without_passive, Flying(path_of(name))


_SEEN: dict[str, tuple[float, float, float]] = {}


@pytest.mark.parametrize("name", wide(FLYING, SOME.__contains__))
def test_example_robot(name: str) -> None:
    robot, theirs = made(name)
    feet = feet_of(robot)
    if not feet or composite.total_inertia(robot.tree).mass <= 0.0 or theirs.model.nv != robot.nv:
        pytest.skip("nothing moves, or weighs")
    rng = np.random.default_rng(1)
    feet = feet * 3 if len(feet) == 1 else feet
    contacts = [Contact(foot, point=rng.uniform(-0.1, 0.1, 3), rigid=True) for foot in feet]
    q = np.stack([robot.random_configuration(seed=k) for k in range(STATES)])
    v, a = rng.uniform(-1.0, 1.0, (2, STATES, robot.nv))
    found = robot.ground_reactions(q, v, a, contacts)
    errors = np.zeros((STATES, 3))
    for k in range(STATES):
        J = theirs.jacobian(q[k], contacts)
        needed = theirs.efforts(q[k], v[k], a[k], [], np.zeros((0, 3)))
        size = np.abs(needed).max()
        tau = theirs.efforts(q[k], v[k], a[k], contacts, found.forces[k])
        least, *_ = np.linalg.lstsq(J.T[:6], needed[:6], rcond=1e-9)
        errors[k, 0] = np.abs(tau - found.tau[k]).max() / size
        errors[k, 1] = np.abs(found.forces[k].ravel() - least).max() / np.abs(least).max()
        rank = np.linalg.matrix_rank(J.T[:6], tol=1e-9 * np.linalg.norm(J.T[:6], 2))
        assert found.rank[k] == rank
        assert found.indeterminate[k] == J.shape[0] - rank
        if rank == 6:
            assert found.supported[k]
            errors[k, 2] = np.abs(tau[:6]).max() / size
        else:
            assert found.residual[k] == pytest.approx(np.linalg.norm(tau[:6]) / np.linalg.norm(needed[:6]), abs=1e-9)
    _SEEN[name] = tuple(errors.max(axis=0))  # type: ignore[assignment]
    assert errors[:, 0].max() < TOLERANCE
    assert errors[:, 2].max() < TOLERANCE
    assert errors[:, 1].max() < 1e-7  # the condition of the feet's places magnifies rounding


def test_that_many_were_seen() -> None:
    """Runs last: twenty real robots at least."""
    if len(_SEEN) < len(FLYING) // 2:
        pytest.skip("not all ran here")
    worst = np.max(list(_SEEN.values()), axis=0)
    print(f"{len(_SEEN)} robots; efforts {worst[0]:.1e}, forces {worst[1]:.1e}, base {worst[2]:.1e}")
    assert len(_SEEN) >= 20


LEGGED = [name for name in FLYING if any(part in name for part in ("solo12", "anymal_b_", "hyq", "bolt", "talos_full"))]


@pytest.mark.parametrize("name", LEGGED)
def test_under_these_efforts_rigid_contacts_hold_it(name: str) -> None:
    """Standing still: Pinocchio's contact dynamics, of the efforts alone, finds no motion."""
    robot, theirs = made(name)
    contacts = [Contact(foot, rigid=True) for foot in feet_of(robot)]
    rng = np.random.default_rng(2)
    q = robot.configuration.integrate(robot.neutral(), 0.3 * rng.normal(size=robot.nv), 1.0)
    still = np.zeros(robot.nv)
    found = robot.ground_reactions(q, still, still, contacts)
    J, M = theirs.jacobian(q, contacts), theirs.mass_matrix(q)
    if not found.supported or np.linalg.cond(M) > 1e10:
        pytest.skip("too few feet, or a massless branch")
    acceleration = pin.forwardDynamics(
        theirs.model, theirs.data, theirs.position(q), still, found.tau, J, np.zeros(len(J)), 1e-12
    )
    weight = np.abs(robot.gravity_forces(q)).max()
    assert np.abs(M @ acceleration).max() < 1e-5 * weight
    pushed = J.T @ theirs.data.lambda_c  # the efforts of the feet's forces are determined, they themselves are not
    assert np.abs(pushed - J.T @ found.forces.ravel()).max() < 1e-5 * weight
