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
        joint_forces = pin.StdVec_Force()
        joint_forces.extend([pin.Force.Zero() for _ in self.model.joints])
        for contact, force in zip(contacts, f, strict=True):
            frame = self.model.frames[self.frame(contact.link)]
            local = self.data.oMf[self.frame(contact.link)].rotation.T @ force
            wrench = pin.Force(local, np.cross(contact.point, local))
            joint_forces[frame.parentJoint] = joint_forces[frame.parentJoint] + frame.placement.act(wrench)
        return pin.rnea(self.model, self.data, x, v, a, joint_forces).copy()

    def mass_matrix(self, q: np.ndarray) -> np.ndarray:
        upper = np.triu(pin.crba(self.model, self.data, self.position(q)))
        return upper + np.triu(upper, 1).T


def feet_of(robot: Robot) -> list[str]:
    """Up to four links at the ends of branches, far from each other in the tree."""
    parents = set(robot.tree.parent)
    leaves = [link for i, link in enumerate(robot.link_names) if i not in parents and robot.bodies.body[i] > 0]
    feet = [link for link in leaves if "foot" in link.lower() or "sole" in link.lower()] or leaves
    moving: dict[int, str] = {}
    for link in feet:
        moving.setdefault(robot.bodies.body[robot.link_names.index(link)], link)
    spread_feet = list(moving.values())
    return (
        [spread_feet[k] for k in np.unique(np.linspace(0, len(spread_feet) - 1, 4).round().astype(int))]
        if spread_feet
        else []
    )


FLYING = [name for name in SUPPORTED if '"floating"' not in path_of(name).read_text()]


def robot_and_oracle(name: str) -> tuple[Robot, Flying]:
    robot = interpreted_robot(Robot.from_urdf(path_of(name), root="floating", mimic=False))
    return robot.without_passive, Flying(path_of(name))


_ERRORS_OF_ROBOT: dict[str, tuple[float, float, float]] = {}


@pytest.mark.parametrize("name", wide(FLYING, SOME.__contains__))
def test_example_robot(name: str) -> None:
    robot, oracle = robot_and_oracle(name)
    feet = feet_of(robot)
    if not feet or composite.total_inertia(robot.tree).mass <= 0.0 or oracle.model.nv != robot.nv:
        pytest.skip("nothing moves, or weighs")
    rng = np.random.default_rng(1)
    # One point holds three directions only: three on one foot can hold a robot.
    feet = feet * 3 if len(feet) == 1 else feet
    contacts = [Contact(foot, point=rng.uniform(-0.1, 0.1, 3), rigid=True) for foot in feet]
    q = np.stack([robot.random_configuration(seed=k) for k in range(STATES)])
    v, a = rng.uniform(-1.0, 1.0, (2, STATES, robot.nv))
    reactions = robot.ground_reactions(q, v, a, contacts)
    errors = np.zeros((STATES, 3))
    for k in range(STATES):
        J = oracle.jacobian(q[k], contacts)
        tau_free = oracle.efforts(q[k], v[k], a[k], [], np.zeros((0, 3)))
        size = np.abs(tau_free).max()
        tau = oracle.efforts(q[k], v[k], a[k], contacts, reactions.forces[k])
        least_forces, *_ = np.linalg.lstsq(J.T[:6], tau_free[:6], rcond=1e-9)
        errors[k, 0] = np.abs(tau - reactions.tau[k]).max() / size
        errors[k, 1] = np.abs(reactions.forces[k].ravel() - least_forces).max() / np.abs(least_forces).max()
        rank = np.linalg.matrix_rank(J.T[:6], tol=1e-9 * np.linalg.norm(J.T[:6], 2))
        assert reactions.rank[k] == rank
        assert reactions.indeterminate[k] == J.shape[0] - rank
        if rank == 6:
            assert reactions.supported[k]
            errors[k, 2] = np.abs(tau[:6]).max() / size
        else:
            assert reactions.residual[k] == pytest.approx(
                np.linalg.norm(tau[:6]) / np.linalg.norm(tau_free[:6]), abs=1e-9
            )
    _ERRORS_OF_ROBOT[name] = tuple(errors.max(axis=0))  # type: ignore[assignment]
    # The condition of the feet's places magnifies rounding of their forces.
    terms = (("tau", TOLERANCE), ("forces", 1e-7), ("tau of the root", TOLERANCE))
    for (term, tolerance), error in zip(terms, errors.T, strict=True):
        state = int(error.argmax())
        assert error[state] < tolerance, f"{term} of '{name}' on {feet}, state {state}: {error[state]:.2g}"


def test_that_many_were_seen() -> None:
    """Runs last: twenty real robots at least."""
    if len(_ERRORS_OF_ROBOT) < len(FLYING) // 2:
        pytest.skip("not all ran here")
    worst = np.max(list(_ERRORS_OF_ROBOT.values()), axis=0)
    print(f"{len(_ERRORS_OF_ROBOT)} robots; efforts {worst[0]:.1e}, forces {worst[1]:.1e}, base {worst[2]:.1e}")
    assert len(_ERRORS_OF_ROBOT) >= 20


LEGGED = [name for name in FLYING if any(part in name for part in ("solo12", "anymal_b_", "hyq", "bolt", "talos_full"))]


@pytest.mark.parametrize("name", LEGGED)
def test_under_these_efforts_rigid_contacts_hold_it(name: str) -> None:
    """Standing still: Pinocchio's contact dynamics, of the efforts alone, finds no motion."""
    robot, oracle = robot_and_oracle(name)
    contacts = [Contact(foot, rigid=True) for foot in feet_of(robot)]
    rng = np.random.default_rng(2)
    q = robot.configuration.integrate(robot.neutral(), 0.3 * rng.normal(size=robot.nv), 1.0)
    rest = np.zeros(robot.nv)
    reactions = robot.ground_reactions(q, rest, rest, contacts)
    J, M = oracle.jacobian(q, contacts), oracle.mass_matrix(q)
    if not reactions.supported or np.linalg.cond(M) > 1e10:
        pytest.skip("too few feet, or a massless branch")
    acceleration = pin.forwardDynamics(
        oracle.model, oracle.data, oracle.position(q), rest, reactions.tau, J, np.zeros(len(J)), 1e-12
    )
    weight = np.abs(robot.gravity_forces(q)).max()
    # The damping of 1e-12 in Pinocchio's solver lets the feet give way by as much.
    assert np.abs(M @ acceleration).max() < 1e-5 * weight, f"ground_reactions.tau of '{name}' moves it"
    pushed = J.T @ oracle.data.lambda_c  # the efforts of the feet's forces are determined, they themselves are not
    assert np.abs(pushed - J.T @ reactions.forces.ravel()).max() < 1e-5 * weight, f"ground_reactions.forces of '{name}'"
