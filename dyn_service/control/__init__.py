"""Control laws, references and plants, without processes, sockets or clocks.

command       interfaces (effort, position, velocity), commands and set points
law           `Law`, the base class of control laws; checks of their commands and gains; modal damping
trajectory    reference trajectories: multi-sine, point to point, piecewise polynomials
independent_joints  the joints of closed loops that references move and laws command
joint_goals   plans `JointTrajectory` goals; their tolerances
controller    a controller without its process: due times, reference, arming, commands
dry_runs      a law against a simulated robot, without a plant's safety or, in lockstep, with it
joint_states  robot states to and from ROS messages
laws/         the control laws
plant/        a simulated or real robot behind its safety supervisor
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dyn_service.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from dyn_service.control.command import INTERFACES, SetPoint
    from dyn_service.control.dry_runs import ClosedLoop, DryRun, dry_run
    from dyn_service.control.law import Law, RobotState
    from dyn_service.control.laws.computed_torque import ComputedTorque, gains
    from dyn_service.control.laws.touch import BranchObserver, Touch, TouchFinder
    from dyn_service.control.plant.plant import Hardware, Reading
    from dyn_service.control.plant.safety import RUNNING, SafetySettings, SafetySupervisor
    from dyn_service.control.trajectory import MultiSineDesign, Reference, design_multi_sine

__all__ = [
    "BranchObserver",
    "ClosedLoop",
    "ComputedTorque",
    "DryRun",
    "Hardware",
    "INTERFACES",
    "Law",
    "MultiSineDesign",
    "RUNNING",
    "Reading",
    "Reference",
    "RobotState",
    "SafetySettings",
    "SafetySupervisor",
    "SetPoint",
    "Touch",
    "TouchFinder",
    "design_multi_sine",
    "dry_run",
    "gains",
]

# at the top they cost each node 70 ms of its start
__getattr__ = lazy_names(
    __name__,
    {
        "dyn_service.control.command": "INTERFACES SetPoint",
        "dyn_service.control.dry_runs": "ClosedLoop DryRun dry_run",
        "dyn_service.control.law": "Law RobotState",
        "dyn_service.control.laws.computed_torque": "ComputedTorque gains",
        "dyn_service.control.laws.touch": "BranchObserver Touch TouchFinder",
        "dyn_service.control.plant.plant": "Hardware Reading",
        "dyn_service.control.plant.safety": "RUNNING SafetySettings SafetySupervisor",
        "dyn_service.control.trajectory": "MultiSineDesign Reference design_multi_sine",
    },
)
