"""An identification as a robot that can exist, in the numbers of robot and joint files.

The base parameters, viscous and Coulomb friction of the fit, and what else it found, are moved together to the nearest
parameters of possible links (`inertias`), weighted by the information of the fit. A robot has no place for offsets,
Stribeck friction and friction that differs between directions: offsets mostly belong to the sensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.identification.inertias import FILE_ERROR, MARGIN, PhysicalParameters, physical_parameters
from dyn_service.identification.result import Comparison, Identification
from dyn_service.identification.terms import FILE_PARAMETERS


@dataclass(frozen=True, eq=False)
class PhysicalIdentification:
    """An identification as a robot that can exist.

    identification: where it comes from. parameters: theta and how far it is from the estimate. friction_widths: rad/s |
    m/s, by joint. other_terms: value of each term that a robot cannot have, by `JOINT.kind`. comparison: as that of the
    identification, with the physical parameters and all terms as `fitted`; files_comparison: with those of the files.
    """

    identification: Identification
    parameters: PhysicalParameters
    friction_widths: dict[str, float]
    other_terms: dict[str, float]
    comparison: Comparison
    files_comparison: Comparison

    def errors(self, part: str) -> dict[str, Array]:
        """Rms errors (nv,) of effort in the rows of `part`, "fit" or "check", by model; NaN without rows.

        The models are the robot's file, the least squares, the physical parameters with all terms, and the new files,
        which lack `other_terms`.
        """
        return {
            "file": self.identification.comparison.rms("file", part),
            "least squares": self.identification.comparison.rms("fitted", part),
            "physical": self.comparison.rms("fitted", part),
            "new files": self.files_comparison.rms("fitted", part),
        }

    @property
    def improves(self) -> bool | None:
        """Whether efforts of the new files differ less from those of the check, relative to their noise, than those of
        the old file; None: no check.
        """
        errors, noise = self.errors("check"), self.identification.noise
        old, new = (float(np.nansum(np.square(errors[name] / noise))) for name in ("file", "new files"))
        return new < old if old else None

    @property
    def warnings(self) -> list[str]:
        """What a user should know before the new files are used, one sentence each."""
        result, identification = self.parameters, self.identification
        lines = []
        if self.improves is None:
            lines.append("no part of the motion was kept for a check, so the error in other motions is unknown")
        errors = self.errors("check")
        worse = [
            f"{joint} ({new:.3g} instead of {old:.3g})"
            for joint, old, new in zip(identification.joints, errors["file"], errors["new files"], strict=True)
            if new > old
        ]
        if worse:
            lines.append(f"the efforts of {', '.join(worse)} differ more with the new files than with the old one")
        if result.repaired:
            lines.append(f"no body has the inertia that the file gives to {', '.join(result.repaired)}: it is replaced")
        if result.bounded:
            text = "the data alone give no possible body, so they are as flat or light as is allowed (margin)"
            lines.append(f"{', '.join(result.bounded)}: {text}")
        if self.other_terms:
            terms = ", ".join(f"{name} {value:.3g}" for name, value in self.other_terms.items())
            lines.append(f"robot files have no place for {terms}: the new files give the errors of 'new files'")
        if identification.unknown:
            count = len(identification.unknown)
            subject = f"{count} combination{'s' if count > 1 else ''} of parameters"
            lines.append(f"this recording does not determine {subject}: the new files keep values near the old file's")
        return lines


def physical(
    identification: Identification, *, file_error: float = FILE_ERROR, margin: float = MARGIN
) -> PhysicalIdentification:
    """Returns the robot that can exist and is nearest to an identification; arguments: as for `physical_parameters`.

    Raises:
        InvalidArgumentError: The identification is of a robot on a server, or an argument is out of its range.
        FailedPreconditionError: The links that move have no mass in the file; or the solver fails.
        MissingLibraryError: Clarabel is not installed.
    """
    robot = identification.robot
    if not isinstance(robot, Robot):
        raise InvalidArgumentError("physical needs an identification of a Robot, found one of a server's", path="robot")
    nb, terms, regression = len(identification.names), identification.terms, identification.regression
    parameters = robot.dynamic_parameters()
    column = {name: k for k, name in enumerate(parameters.parameters)}
    of_files = [k for k, term in enumerate(terms) if term.kind in FILE_PARAMETERS]
    order = [*range(nb), *(nb + k for k in of_files)]
    order += [k for k in range(len(regression.estimate)) if k not in order]
    matrix = np.zeros((nb + len(of_files), len(column)))
    matrix[:nb] = identification.model.combinations
    for row, k in enumerate(of_files, start=nb):
        matrix[row, column[f"{terms[k].joint}.{FILE_PARAMETERS[terms[k].kind]}"]] = 1.0
    result = physical_parameters(
        robot,
        matrix,
        regression.estimate[order],
        regression.information[np.ix_(order, order)],
        file_error=file_error,
        margin=margin,
        theta=_without_removed_friction(identification, np.asarray(parameters.theta), column),
    )
    values = np.empty(len(order))
    values[order] = result.values
    other_terms = {term.name: float(values[nb + k]) for k, term in enumerate(terms) if k not in of_files}
    widths = {terms[k].joint: terms[k].width for k in of_files if terms[k].kind == "coulomb"}
    comparison = _moved(identification.comparison, values - regression.estimate)
    rest = np.zeros(len(values))
    rest[[nb + k for k in range(len(terms)) if k not in of_files]] = -1.0
    return PhysicalIdentification(
        identification, result, widths, other_terms, comparison, _moved(comparison, rest * values)
    )


def _moved(comparison: Comparison, step: Array) -> Comparison:
    """Returns the comparison with the fitted efforts of other parameters."""
    return replace(comparison, fitted=comparison.fitted + comparison.columns @ step[: comparison.columns.shape[-1]])


def _without_removed_friction(identification: Identification, theta: Array, column: dict[str, int]) -> Array:
    """Returns the file's parameters without friction of joints that were measured, which the terms replace."""
    fitted_terms = {(term.joint, FILE_PARAMETERS.get(term.kind)) for term in identification.terms}
    usable = np.atleast_1d(identification.comparison.usable.any(axis=0))
    has_effort = dict(zip(identification.joints, usable, strict=True))
    theta = theta.copy()
    for joint in identification.robot.description.joints:
        leader = joint.mimic.joint if joint.mimic else joint.name
        for part in FILE_PARAMETERS.values():
            # No term is a follower's: its friction is part of its leader's.
            if has_effort.get(leader) and (joint.name, part) not in fitted_terms:
                theta[column[f"{joint.name}.{part}"]] = 0.0
    return theta
