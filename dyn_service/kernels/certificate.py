"""The certificate of a kernel: its largest difference from its equations. `certify.py` makes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dyn_service.model.description import Note

Form = Literal["chosen frames", "link frames"]

_ADVICE = "check it at your states with `verify`, and report the robot file"


@dataclass(frozen=True)
class Certificate:
    """The largest difference between a kernel and its equations on the tree as the file gives it.

    kernel: its name. form: the frames it was made in. error: the largest difference as a share of the rounding bound
    (see `certify`). states: the number of test states with finite answers, at which the two were compared. output: the
    output that the error was found in. relative: by how much that output differed, as a share of its largest entry in
    the same state. refused: the error in chosen frames where it exceeded 1 and the kernel was made in link frames; else
    None.
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
        """Whether the kernel was compared at one state or more, and its error is within the rounding bound."""
        return self.states > 0 and self.error <= 1.0

    def notes(self) -> list[Note]:
        """Returns what a user should know: a slower form, or an output that is less exact than it could be."""
        element, found = f"kernel {self.kernel}", []
        if self.refused is not None:
            text = f"made in link frames: in chosen frames its error is {self.refused:.3g} times the rounding bound"
            found.append(Note("changed", element, text))
        if not self.states:
            text = f"not compared with its equations, which have no finite answer at the test states: {_ADVICE}"
            found.append(Note("doubted", element, text))
        elif not self.holds:
            apart = f"{self.relative:.1g} of its largest entry, {self.error:.3g} times the rounding bound"
            found.append(Note("doubted", element, f"{self.output!r} is off by up to {apart}: {_ADVICE}"))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields but the name, as plain values ready for MessagePack or JSON."""
        return {name: value for name, value in asdict(self).items() if name != "kernel"}
