"""Simulated recordings of robots whose numbers differ from their files, as drivers report them."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dyn_service import Inertial, JointNumbers, Overlay, Robot
from dyn_service.identification import InertialModel, Recording, inertial_model
from tests.conftest import URDF

Array = NDArray[np.float64]
MotionFunction = Callable[[Array], tuple[Array, Array, Array]]


@dataclass(frozen=True)
class Errors:
    """Of a driver: standard deviations of positions (rad, m) and of efforts as a share of their rms; steps of the
    numbers; delay of the efforts; share and size of outliers, in standard deviations.
    """

    position: float = 2e-5
    effort_share: float = 0.02
    position_step: float = 2.0 * np.pi / 2**19
    effort_step_share: float = 0.005
    delay_s: float = 0.0035
    outliers: float = 0.0
    outlier_size: float = 30.0

    def scaled(self, factor: float) -> Errors:
        """Returns noise and steps that are smaller by a factor, at least those of double precision, without a delay."""
        sizes = {name: max(factor * getattr(self, name), 1e-15) for name in _SIZES}
        return replace(self, **sizes, delay_s=0.0)


_SIZES = ("position", "effort_share", "position_step", "effort_step_share")


def part_of(name: str, links: Sequence[str]) -> Robot:
    """Returns the robot of some links of a shipped robot, and the joints between them."""
    root = ET.parse(URDF / f"{name}.urdf").getroot()
    result = ET.Element("robot", {"name": f"{name}_part"})
    for element in root:
        ends = [element.find(end) for end in ("parent", "child")]
        joins = element.tag == "joint" and all(end is not None and end.get("link") in links for end in ends)
        if joins or (element.tag == "link" and element.get("name") in links):
            result.append(copy.deepcopy(element))
    return Robot.from_text(ET.tostring(result, encoding="unicode"))


def true_numbers(robot: Robot, seed: int, share: float = 0.15, widths: tuple[float, float] | None = None) -> Overlay:
    """Returns masses, centres, inertias and friction that differ from the file's by about a share; widths of friction
    between two numbers, or the file's.
    """
    rng = np.random.default_rng(seed)
    links = {}
    for link in robot.as_described.links:
        if link.inertial is not None and link.inertial.mass > 0.0:
            scale = 1.0 + share * rng.uniform(-1.0, 1.0)
            com = np.asarray(link.inertial.com) + 0.01 * rng.uniform(-1.0, 1.0, 3)
            axes = np.asarray(link.inertial.rotation)
            inertia = axes @ link.inertial.inertia @ axes.T * (1.0 + share * rng.uniform(-1.0, 1.0))
            links[link.name] = Inertial(link.inertial.mass * scale, com, inertia)
    effort = np.where(np.isfinite(robot.limits.efforts), robot.limits.efforts, 10.0)
    random_widths = np.random.default_rng(seed + 1).uniform(*(widths or (0.0, 0.0)), robot.nv).tolist()
    joints = {
        name: JointNumbers(
            friction_width=random_widths[k] if widths else None,
            friction=0.03 * effort[k] * rng.uniform(0.5, 1.5),
            damping=0.03 * effort[k] / max(robot.limits.speeds[k], 1.0) * rng.uniform(0.5, 1.5),
        )
        for k, name in enumerate(robot.joint_names)
    }
    return Overlay(links=links, joints=joints)


def theta_of(robot: Robot, numbers: Overlay) -> Array:
    """Returns the dynamic parameters of the robot with other numbers."""
    parameters = robot.dynamic_parameters()
    theta = dict(zip(parameters.parameters, parameters.theta, strict=True))
    for name, link in numbers.links.items():
        m, c = float(np.asarray(link.mass)), np.asarray(link.com)
        about_origin = np.asarray(link.inertia) + m * (c @ c * np.eye(3) - np.outer(c, c))
        values = [m, *(m * c), *about_origin[np.triu_indices(3)]]
        names = ("m", "hx", "hy", "hz", "Ixx", "Ixy", "Ixz", "Iyy", "Iyz", "Izz")
        theta.update({f"{name}.{part}": x for part, x in zip(names, values, strict=True)})
    for name, joint in numbers.joints.items():
        theta.update({f"{name}.friction": float(joint.friction), f"{name}.damping": float(joint.damping)})
    return np.array([theta[name] for name in parameters.parameters])


@dataclass(frozen=True, eq=False)
class Experiment:
    """A motion of a robot with other numbers than its file's, and the efforts that it takes. sampled at t."""

    robot: Robot
    numbers: Overlay
    t: Array
    q: Array
    effort: Array
    late_effort: Array
    errors: Errors
    model: InertialModel

    @classmethod
    def of(
        cls,
        robot: Robot,
        seed: int,
        duration_s: float = 20.0,
        rate_hz: float = 500.0,
        errors: Errors | None = None,
        widths: tuple[float, float] | None = None,
    ) -> Experiment:
        errors = errors or Errors()
        rng, numbers = np.random.default_rng(seed), true_numbers(robot, seed, widths=widths)
        motion = multi_sine(robot, rng)
        t = np.arange(0.0, duration_s, 1.0 / rate_hz)
        efforts = [robot.inverse_dynamics(*motion(t - d), overlay=numbers) for d in (0.0, errors.delay_s)]
        return cls(robot, numbers, t, motion(t)[0], *efforts, errors, inertial_model(robot))

    @property
    def truth(self) -> Array:
        """The true base parameters."""
        return self.model.combinations @ theta_of(self.robot, self.numbers)

    def recording(self, seed: int) -> Recording:
        """Returns a draw of the recording."""
        rng, errors = np.random.default_rng(seed), self.errors
        rms = np.sqrt(np.mean(self.effort**2, axis=0))
        q = self.q + errors.position * rng.standard_normal(self.q.shape)
        q = np.round(q / errors.position_step) * errors.position_step
        noise = errors.effort_share * rng.standard_normal(self.q.shape)
        noise[rng.random(self.q.shape) < errors.outliers] *= errors.outlier_size
        effort = self.late_effort + rms * noise
        step = errors.effort_step_share * rms
        return Recording(self.t, q, np.round(effort / step) * step, self.robot.joint_names)


def multi_sine(robot: Robot, rng: np.random.Generator, period_s: float = 10.0, harmonics: int = 8) -> MotionFunction:
    """Returns a function of t that returns q, v, a of random sines within a share of the limits."""
    limits = robot.limits
    lower, upper = np.maximum(limits.lower, -2.5), np.minimum(limits.upper, 2.5)
    omega = 2.0 * np.pi / period_s * np.arange(1, harmonics + 1)
    cosine, sine = rng.standard_normal((2, harmonics, robot.nv)) / np.sqrt(np.arange(1, harmonics + 1))[:, None]
    grid = np.linspace(0.0, period_s, 2000)

    def series(t: Array, order: int) -> Array:
        phase = np.outer(t, omega) + order * np.pi / 2.0
        factor = omega**order
        return (np.cos(phase) * factor) @ cosine + (np.sin(phase) * factor) @ sine

    size = 0.4 * (upper - lower) / np.abs(series(grid, 0)).max(axis=0)
    size = np.minimum(size, 0.5 * np.minimum(limits.speeds, 6.0) / np.abs(series(grid, 1)).max(axis=0))

    def motion(t: Array) -> tuple[Array, Array, Array]:
        return 0.5 * (lower + upper) + size * series(t, 0), size * series(t, 1), size * series(t, 2)

    return motion
