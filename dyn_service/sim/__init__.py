"""Simulation without input or output: integrators and rollouts."""

from dyn_service.sim.integrators import INTEGRATORS, advance, integrator, rk4, semi_implicit_euler
from dyn_service.sim.rollout import Rollout, rollout

__all__ = ["INTEGRATORS", "Rollout", "advance", "integrator", "rk4", "rollout", "semi_implicit_euler"]
