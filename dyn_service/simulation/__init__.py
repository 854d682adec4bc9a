"""Simulation, and inverse kinematics, without input or output.

contact_points   points of links that can touch planes
contact/         constraint solvers for contacts, joint limits and friction
cost             predicted cost of a simulation request
divergence       the error of motions that diverge
engines          engines of a simulated plant: one step at a time
finite_check     detection of motions that diverge
fmu              a unit of FMI as the engine
stability        longest stable steps, the default integrator
integrators/     adaptive, implicit and sticking steps; explicit ones are in `model/steps.py`
inverse_kinematics  positions at which links reach targets, for many problems at once
laws             control laws as data: checked, evaluated
loads            efforts and wrenches that are held through a step
mujoco           MuJoCo as the engine
peer_tasks       targets of inverse kinematics as tasks of pink and mink
parts            long simulations as a series of requests
rheonomic        systems with prescribed joints
simulate         the loop of `simulate`
task             checked arguments of a simulation, its grid of times
"""

from __future__ import annotations

from dyn_service.api.results import Trajectory
from dyn_service.simulation.engines import advance, integrator
from dyn_service.simulation.inverse_kinematics import InverseKinematics, Target, inverse_kinematics
from dyn_service.simulation.rheonomic import RheonomicRobot
from dyn_service.simulation.simulate import simulate

__all__ = [
    "InverseKinematics",
    "RheonomicRobot",
    "Target",
    "Trajectory",
    "advance",
    "integrator",
    "inverse_kinematics",
    "simulate",
]
