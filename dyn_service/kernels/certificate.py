"""The certificate of a kernel: its largest difference from its equations, as found by `certify`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dyn_service.model.description import Note

Form = Literal["chosen frames", "link frames"]

_ADVICE = "check it at your states with `verify`, and report the robot file"


@dataclass(frozen=True)
class Certificate:
    """The largest difference between a kernel and its equations on the tree as given in the file.

    kernel: name of the kernel. form: frames of its tree. error: largest difference as a share of the rounding bound
    (see `certify`). states: number of test states that were compared, those with finite results. output: the output
    with the largest error. relative: largest difference of that output as a share of its largest entry in the same
    state. refused: the error in chosen frames if it exceeded 1, so that the kernel was made in link frames; else None.
    """

    kernel: str
    form: Form
    error: float
    states: int
    output: str = ""
    relative: float = 0.0
    refused: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the kernel was compared in at least one state, with an error within the rounding bound."""
        return self.states > 0 and self.error <= 1.0

    def notes(self) -> list[Note]:
        """Returns notes for the user: a slower form, or an output with an error above the rounding bound."""
        element, notes = f"kernel {self.kernel}", []
        if self.refused is not None:
            text = f"made in link frames: in chosen frames its error is {self.refused:.3g} times the rounding bound"
            notes.append(Note("changed", element, text))
        if not self.states:
            text = f"not compared with its equations, which have no finite answer at the test states: {_ADVICE}"
            notes.append(Note("warning", element, text, rule="uncompared-kernel"))
        elif not self.holds:
            size = f"{self.relative:.1g} of its largest entry, {self.error:.3g} times the rounding bound"
            text = f"{self.output!r} is off by up to {size}: {_ADVICE}"
            notes.append(Note("warning", element, text, rule="inexact-kernel"))
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields except the name, as plain values for MessagePack or JSON."""
        return {name: value for name, value in asdict(self).items() if name != "kernel"}
