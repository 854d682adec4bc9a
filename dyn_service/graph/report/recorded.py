"""The motion of a plant in a report's `recording.npz`.

Rows of the channel `plant`: at the time t of the plant, q and v, and tau, the effort that acted in the cycle of the
drive that ended then. So tau of a row was held from the time of the previous row on, if each cycle has a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.arrays import read_npz
from dyn_service.api.queries import Array
from dyn_service.control.plant.safety import ACTIVE, MODES
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.report.charts import running_time
from dyn_service.model.configuration import Configuration
from dyn_service.support.suggestions import did_you_mean

RECORDING, REPORT = "recording.npz", "report.json"
_PLANT = ".plant"
"""Suffix of the arrays of a plant's motion."""


@dataclass(frozen=True, eq=False)
class Motion:
    """A motion. t (k,) s, increasing; q (k, nq); v, tau (k, nv), zero if unknown; reference (k, nq), NaN if missing.

    commanded: (k,), whether a controller commanded the robot; brakes may act in other rows. None if unknown.
    """

    t: Array
    q: Array
    v: Array
    tau: Array
    reference: Array
    commanded: NDArray[np.bool_] | None = None

    def at(self, time_s: float) -> int:
        """Returns the last row not later than a time, or the first row."""
        return max(0, int(np.searchsorted(self.t, time_s, side="right")) - 1)


@dataclass(frozen=True)
class Recorded:
    """A plant of a launch's report. node: its name. parameters: its parameters, including the robot. fingerprint: of
    its model; None if the report has several plants.
    """

    node: str
    parameters: Mapping[str, Any]
    tables: Mapping[str, tuple[tuple[str, ...], Array]]
    fingerprint: str | None = None

    def motion(self, at: Configuration) -> Motion:
        """Returns the motion for a robot with these joints."""
        columns, table = self.tables["plant"]
        t = running_time(_of(columns, table, ["t"], self.node)[:, 0])
        names = at.position_names, at.velocity_names
        q = _of(columns, table, [f"q.{name}" for name in names[0]], self.node)
        v, tau = (_of(columns, table, [f"{kind}.{name}" for name in names[1]], self.node) for kind in ("v", "tau"))
        reference = np.full_like(q, np.nan)
        if "reference" in self.tables:
            columns, table = self.tables["reference"]
            reference = _of(columns, table, [f"q.{name}" for name in names[0]], self.node)
        mode = _of(*self.tables["plant"], ["mode"], self.node)[:, 0]
        return Motion(t, q, v, tau, reference, mode == MODES.index(ACTIVE))


def of_report(folder: Path, node: str | None = None) -> Recorded:
    """Returns a plant of a launch's report: the one with the given name, or the first.

    Raises:
        NotFoundError: The folder has no report, or no such plant.
        InvalidArgumentError: The report cannot be read.
    """
    try:
        report = json.loads((folder / REPORT).read_text("utf-8"))
        plants = {str(process["name"]): process for process in report["processes"]}
        arrays = read_npz(folder / RECORDING)
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise NotFoundError(f"{str(folder)!r} is no report of a launch: it has no {name}") from None
    except (OSError, ValueError, LookupError, TypeError, EOFError, RecursionError, MemoryError, BadZipFile) as error:
        cause = str(error) if isinstance(error, OSError | ValueError | BadZipFile) else "it is not a report of a launch"
        raise InvalidArgumentError(f"the report in {str(folder)!r} cannot be read: {cause}") from None
    found = [name for name in plants if f"{name.replace('/', '.')}{_PLANT}" in arrays]
    if not found:
        raise NotFoundError(f"the report in {str(folder)!r} has no plant that recorded its motion")
    chosen = found[0] if node is None else node.lstrip("/")
    if chosen not in found:
        near = did_you_mean(chosen, found) or f"; it has {', '.join(found)}"
        raise NotFoundError(f"the report in {str(folder)!r} has no plant {chosen!r} that recorded its motion{near}")
    key = chosen.replace("/", ".")
    tables = {
        channel: (tuple(arrays[f"{key}.{channel}.columns"].tolist()), arrays[f"{key}.{channel}"])
        for channel in ("plant", "reference")
        if f"{key}.{channel}" in arrays
    }
    fingerprint = (report.get("robot") or {}).get("fingerprint") if len(found) == 1 else None
    return Recorded(chosen, plants[chosen]["parameters"], tables, fingerprint)


def _of(columns: Sequence[str], table: Array, names: Sequence[str], node: str) -> Array:
    missing = [name for name in names if name not in columns]
    if missing:
        raise InvalidArgumentError(f"the recording of {node!r} has no column {missing[0]!r}: it is of another robot")
    return np.ascontiguousarray(table[:, [columns.index(name) for name in names]])
