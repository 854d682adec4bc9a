"""Sensor files: which sensors a robot has, and what they do wrong.

    robot: ur5e
    seed: 7
    force_torque:
      wrist:
        joint: tool0_joint          # any joint, fixed ones too
        rate_hz: 1000
        force: {noise_density: 0.01, range: 500, step: 0.05}
    imus:
      tool: {link: tool0, rate_hz: 400, gyroscope: {bias_walk: 2.0e-5}}
    encoders:
      elbow_joint: {counts_per_turn: 4096, gear_ratio: 101, rate_hz: 500}

`settings.py` has all keys with their units, `config/ur5e_sensors.yaml` is one with where its figures are from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from dyn_service.sensors.settings import EncoderSettings, ForceTorqueSettings, ImuSettings, SensorSettings
from dyn_service.support.documents import Document, read_document


class _SensorFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `SensorSettings`, its sensors still to be read one by one: a fault then knows its sensor."""

    robot: str
    seed: int = 0
    force_torque: dict[str, Any] = {}
    imus: dict[str, Any] = {}
    encoders: dict[str, Any] = {}


_KINDS: dict[str, type[msgspec.Struct]] = {
    "force_torque": ForceTorqueSettings,
    "imus": ImuSettings,
    "encoders": EncoderSettings,
}


def read_settings(path: str | os.PathLike[str]) -> tuple[SensorSettings, Document]:
    """What a sensor file says, and the file, for faults to come.

    Raises:
        NotFoundError: There is no such file.
        ConfigurationError: It is no sensor file, or a number in it is none that a sensor can have; names file, line and
            key.
    """
    document = read_document(Path(path))
    file = document.convert(document.value, _SensorFile)
    read: dict[str, Any] = {}
    for section, kind in _KINDS.items():
        said: dict[str, Any] = getattr(file, section)
        read[section] = {name: document.convert(one, kind, (section, name)) for name, one in said.items()}
    whole = {"robot": file.robot, "seed": file.seed}
    return document.convert({**whole, **read}, SensorSettings), document
