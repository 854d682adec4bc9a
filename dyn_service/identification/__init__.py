"""Identification of robots from recorded motions. See docs/identification.md.

recordings  recordings of joints, from bags, reports, CSV and NumPy files
signals     even times, zero-phase filters, derivatives, a proposed cut-off
terms       columns of base inertial parameters and of friction, in three forms
regression  robust weighted least squares with standard errors for correlated noise
fit         `identify`: delay, friction terms, fit and check on different motions
motor_gains  gains from current to effort
payloads    the payload of a link, from recordings, from poses at rest, or while the robot moves
excitation  motions within limits that make parameters known
result      `Identification`: parameters, errors, directions that the data do not show
inertias    parameters of possible links that are nearest to an estimate: a conic program
physical_robot  `physical`: an identification as a robot that can exist
robot_files     the identified robot as a robot file and a joint file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dyn_service.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from dyn_service.identification.excitation import (
        Excitation,
        ExcitationDesign,
        FourierMotion,
        KeepOut,
        Peak,
        design_excitation,
    )
    from dyn_service.identification.fit import identify
    from dyn_service.identification.motor_gains import EffortGain, effort_gains, file_gains
    from dyn_service.identification.payloads import PayloadEstimate, PayloadEstimator, identify_payload
    from dyn_service.identification.physical_robot import PhysicalIdentification, physical
    from dyn_service.identification.recordings import Recording, read_recording
    from dyn_service.identification.result import Identification, JointFriction, UnknownDirection
    from dyn_service.identification.robot_files import write_robot
    from dyn_service.identification.signals import Motion, filter_motion, propose_cutoff
    from dyn_service.identification.terms import InertialModel, inertial_model

__all__ = [
    "EffortGain",
    "Excitation",
    "ExcitationDesign",
    "FourierMotion",
    "Identification",
    "InertialModel",
    "JointFriction",
    "KeepOut",
    "Motion",
    "PayloadEstimate",
    "PayloadEstimator",
    "Peak",
    "PhysicalIdentification",
    "Recording",
    "UnknownDirection",
    "design_excitation",
    "effort_gains",
    "file_gains",
    "filter_motion",
    "identify",
    "identify_payload",
    "inertial_model",
    "physical",
    "propose_cutoff",
    "read_recording",
    "write_robot",
]

__getattr__ = lazy_names(
    __name__,
    {
        "dyn_service.identification.excitation": (
            "Excitation ExcitationDesign FourierMotion KeepOut Peak design_excitation"
        ),
        "dyn_service.identification.fit": "identify",
        "dyn_service.identification.motor_gains": "EffortGain effort_gains file_gains",
        "dyn_service.identification.payloads": "PayloadEstimate PayloadEstimator identify_payload",
        "dyn_service.identification.physical_robot": "PhysicalIdentification physical",
        "dyn_service.identification.recordings": "Recording read_recording",
        "dyn_service.identification.result": "Identification JointFriction UnknownDirection",
        "dyn_service.identification.robot_files": "write_robot",
        "dyn_service.identification.signals": "Motion filter_motion propose_cutoff",
        "dyn_service.identification.terms": "InertialModel inertial_model",
    },
)
