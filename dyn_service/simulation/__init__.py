"""Simulation without input or output: integrators, and motions from efforts."""

from dyn_service.api.results import Trajectory
from dyn_service.simulation.integrators.explicit import INTEGRATORS, advance, integrator
from dyn_service.simulation.simulate import simulate

__all__ = ["INTEGRATORS", "Trajectory", "advance", "integrator", "simulate"]
