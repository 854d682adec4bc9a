"""A robot whose kernels are machine code that is not held against the tree as given, which is most of making a kernel.

For tests that compare calls of the same kernel, of robots whose kernels no other test loads from the store. Others
compare kernels with the tree as given: tests/kernels/test_certificates.py, tests/oracle/test_certificates.py.
"""

from __future__ import annotations

from dyn_service.engine.robot import Robot
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.compiling import compiled
from dyn_service.kernels.frames import kernel_tree
from dyn_service.kernels.library import KernelLibrary, LibraryKernel, _tracer
from dyn_service.kernels.signature import Signature


class _Library(KernelLibrary):
    """Kernels of a robot too small for loops over its bodies, in memory only."""

    def _load(self, signature: Signature) -> None:
        return None

    def _make(self, signature: Signature) -> LibraryKernel:
        graph = _tracer(self.links, signature)(kernel_tree(self.links, signature.bodies), signature)
        kernel, loop, _ = compiled(graph)
        return LibraryKernel(kernel, Certificate(signature.name, "chosen frames", 0.0, 0), loop)


def uncertified(robot: Robot) -> Robot:
    """Returns the robot, with new libraries of its own and of its tree without passive forces."""
    for variant in {robot, robot.without_passive}:
        variant.evaluator.library = _Library(variant.tree)
    return robot
