"""A free-flying robot keeps its momentum: `python -m qa.soak.flying`, 10^5 steps of the symplectic integrator.

The gate takes a thousandth of them; the last long run is in docs/theory/hamilton.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dyn_service.engine.robot import Robot
from tests.conftest import URDF

WEIGHTLESS = (0.0, 0.0, 0.0)


def momentum_lost(
    path: Path, *, steps: int, dt: float = 1e-3, sample_interval: int = 100
) -> tuple[float, float, float]:
    """By how much the momentum in the world changes, over its size; how far quaternions are from length 1; and by how
    much the energy changes, over itself.
    """
    robot = Robot.from_urdf(path, root="floating")
    rng = np.random.default_rng(0)
    q, v = robot.random_configuration(seed=1), 0.3 * rng.normal(size=robot.nv)
    motion = robot.simulate(
        q, v, dt=dt, steps=steps, every=sample_interval, integrator="implicit_midpoint", gravity=WEIGHTLESS
    )
    about_root = robot.system_momentum(motion.q, motion.v, frame="world").momentum[:, 0]
    linear = about_root[:, 3:]
    angular = about_root[:, :3] + np.cross(motion.q[:, :3], linear)
    momentum_error = max(float(np.abs(x - x[0]).max() / np.abs(x[0]).max()) for x in (linear, angular))
    length = float(np.abs(np.linalg.norm(motion.q[:, 3:7], axis=1) - 1.0).max())
    energy = robot.energy(motion.q, motion.v, gravity=WEIGHTLESS).total
    return momentum_error, length, float(np.abs(energy - energy[0]).max() / energy[0])


if __name__ == "__main__":
    momentum_error, length, energy = momentum_lost(URDF / "ur5e.urdf", steps=100_000)
    print(
        f"momentum: {momentum_error:.1e} of its size; quaternions: {length:.1e} from length 1; energy: "
        f"{energy:.1e} of itself"
    )
