"""Messages of any type, drawn from a seed: every field has a value of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from dyn_service.messages import Message, fields_of

# rosbags writes a byte as a signed one: above 127 it has no frame to compare
_RANGES = {"int8": (-(2**7), 2**7), "uint8": (0, 2**8), "byte": (0, 2**7), "int16": (-(2**15), 2**15)}
_RANGES |= {"uint16": (0, 2**16), "int32": (-(2**31), 2**31), "uint32": (0, 2**32), "int64": (-(2**63), 2**63 - 1)}


def drawn(kind: type[Message], rng: np.random.Generator) -> Message:
    """A message of that type, its lists of one to three entries."""
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        count = field.length or int(rng.integers(1, 4))
        entries = [_random_value(field.kind, rng) for _ in range(count)]
        values[field.name] = entries[0] if field.length is None else entries
    if "v" in values:
        values["v"] = kind.VERSION
    return kind(**values)


def _random_value(kind: str | type[Message], rng: np.random.Generator) -> Any:
    if not isinstance(kind, str):
        return drawn(kind, rng)
    if kind == "string":
        return "".join(rng.choice(list("abcdefgh/_é"), int(rng.integers(0, 9))))
    if kind == "bool":
        return bool(rng.integers(2))
    if kind in ("float64", "float32"):
        return float(np.float32(rng.normal()))
    return int(rng.integers(*_RANGES[kind]))
