"""What robots with closed loops need of the evaluator of their tree."""

from __future__ import annotations

from typing import Protocol

from dyn_service.api.queries import Query
from dyn_service.api.spec import Variant
from dyn_service.engine.robot_model import RobotModel
from dyn_service.engine.rows import Answers
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.signature import Signature


class TreeEvaluator(Answers, Protocol):
    """An `engine.evaluator.Evaluator` of a tree."""

    model: RobotModel
    library: KernelLibrary

    def signature(self, row: Query, method: str, variant: Variant) -> Signature:
        """See `Evaluator.signature`."""

    def has_kernel(self, row: Query, method: str, variant: Variant, *, passive: bool) -> bool:
        """See `Evaluator.has_kernel`."""

    def load_kernel(self, row: Query, method: str, variant: Variant, *, passive: bool, make: bool) -> bool:
        """See `Evaluator.load_kernel`."""
