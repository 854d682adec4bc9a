"""What was found when a kernel was held against the tree as given; `certify.py` does the holding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dyn_service.model.description import Note

Form = Literal["chosen frames", "link frames"]


@dataclass(frozen=True)
class Certificate:
    """How a kernel did against the tree as given.

    kernel: its name. form: what it was made from. error: its largest difference, as a share of what rounding explains;
    at most 1 but where `holds` is false. states: at how many its answers as given were finite, and could be compared.
    refused: the error of the chosen frames where it was too much, and the kernel was made from the tree as given
    instead; None where it was not.
    """

    kernel: str
    form: Form
    error: float
    states: int
    refused: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the kernel was held against the tree as given, and is as good as rounding lets it be."""
        return self.states > 0 and self.error <= 1.0

    def notes(self) -> list[Note]:
        """What a user should know of: a form that was refused, a kernel that is still not as good as it could be."""
        element, found = f"kernel {self.kernel}", []
        if self.refused is not None:
            apart = f"{self.refused:.3g} times further from it than rounding explains"
            found.append(
                Note("changed", element, f"made from the tree as given; in frames of our choice it was {apart}")
            )
        if not self.states:
            found.append(Note("doubted", element, "no answer was finite at the states tried: nothing was compared"))
        elif not self.holds:
            found.append(Note("doubted", element, f"{self.error:.3g} times further off than rounding explains"))
        return found

    def to_dict(self) -> dict[str, Any]:
        """In plain values, ready for MessagePack or JSON."""
        return {"form": self.form, "error": self.error, "states": self.states, "refused": self.refused}
