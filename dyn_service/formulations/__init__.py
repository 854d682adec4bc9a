"""Explicit, slow implementations of the documents' equations, used to check the compiled kernels; gait segments.

identifiability  combinations of the dynamic parameters that motions can identify
loop_verification  residuals of robots with closed loops, against dense equations
bodies           Newton's and Euler's equations of single bodies, virtual power
force_causes     loads of joints by motors, weights, pairs of rates, external wrenches
cost             predicted time and memory of verification and of gait segments
segments         inverse dynamics of gait segments
systems          systems given by the places of particles or by their energies
local_robot      what they need of a robot in this process
verification     residuals between all formulations
world_equations  the influence operators as dense matrices, and the equations written with them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dyn_service.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from dyn_service.dynamics.structure import nilpotency
    from dyn_service.dynamics.symbolic import SymbolicEquations, equations_of_motion
    from dyn_service.formulations.identifiability import BaseParameters, base_parameters
    from dyn_service.formulations.systems import LagrangianSystem, ParticleSystem
    from dyn_service.formulations.world_equations import WorldEquations

__all__ = [
    "BaseParameters",
    "LagrangianSystem",
    "ParticleSystem",
    "SymbolicEquations",
    "WorldEquations",
    "base_parameters",
    "equations_of_motion",
    "nilpotency",
]

__getattr__ = lazy_names(
    __name__,
    {
        "dyn_service.dynamics.structure": "nilpotency",
        "dyn_service.dynamics.symbolic": "SymbolicEquations equations_of_motion",
        "dyn_service.formulations.identifiability": "BaseParameters base_parameters",
        "dyn_service.formulations.systems": "LagrangianSystem ParticleSystem",
        "dyn_service.formulations.world_equations": "WorldEquations",
    },
)
