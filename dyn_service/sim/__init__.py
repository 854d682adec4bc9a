"""Simulation without input or output: integrators, and motions from efforts."""

from dyn_service.api.results import Trajectory
from dyn_service.sim.integrators import INTEGRATORS, advance, integrator
from dyn_service.sim.simulate import simulate

__all__ = ["INTEGRATORS", "Trajectory", "advance", "integrator", "simulate"]
