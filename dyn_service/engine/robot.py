"""A robot in this process: the table of queries, answered by kernels compiled for this robot.

    robot = Robot.from_urdf("urdf/panda.urdf")
    tau = robot.inverse_dynamics(q, v, a)          # (..., nv) from (..., nq), (..., nv), (..., nv)

All inputs broadcast over leading axes. The result of a state is the same to the last bit alone and in a batch. NaN in
gives NaN out, and so does an angle beyond 2^45 rad (3.5e13), whose sine has no correct digit. A server refuses such
inputs with an error that gives the reason.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api import preparation
from dyn_service.api.arguments import DEFAULT_STEP, mapped
from dyn_service.api.arrays import broadcast, found, holds_labelled, with_leading_axes
from dyn_service.api.cost import leads_of, overlay_lead
from dyn_service.api.description import RobotDescription, Sizes
from dyn_service.api.inputs import check_names, checked_option, checked_options, labelled, missing_input
from dyn_service.api.lists import call_of, row_of_list, with_own_axes
from dyn_service.api.named import names_of, one_hot
from dyn_service.api.outputs import checked_workers, fill, output_arrays
from dyn_service.api.queries import (
    COMPUTATIONS,
    QUERIES,
    Array,
    Computation,
    Overlay,
    Payload,
    Query,
    RobotQueries,
    Row,
)
from dyn_service.api.spec import BY_NAME, WITH_WRENCHES, WITHOUT_WRENCHES, Variant
from dyn_service.engine import rollouts
from dyn_service.engine.altered_trees import AlteredTrees, overlay_to, with_overlay, with_payload
from dyn_service.engine.calls import BoundCall, Call, Finish, OverlayCache, RowCalls
from dyn_service.engine.rows import Rows, Selection, described, import_receipt, operand, operands
from dyn_service.engine.wrenches import link_wrenches, on_bodies, on_links, places
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.direct import ANY, Arguments, DirectCall
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.signature import Signature, signature_of
from dyn_service.model.building import tree_of
from dyn_service.model.composite import (
    Weld,
    branch_inertias,
    is_possible,
    lacks_inertia,
    massless_joint,
    singular_joint,
    weld,
)
from dyn_service.model.configuration import Configuration
from dyn_service.model.description import Description, LoopHandling, RootType, without_passive
from dyn_service.model.tree import Tree
from dyn_service.parsing import files as reading
from dyn_service.parsing import xacro
from dyn_service.parsing.report import Receipt
from dyn_service.parsing.urdf import reader
from dyn_service.parsing.xml_elements import ReadLimits
from dyn_service.support.suggestions import known_instead

_LOG = logging.getLogger(__name__)

MAX_SIGNATURES = 1024
"""Signatures kept for each robot. Clients may ask for any list of queries, so their number has no other bound."""


class Shared(NamedTuple):
    """The objects that a robot shares with all robots overlaid on it."""

    description: Description
    rows: Rows
    library: KernelLibrary
    link_index: dict[str, int]
    defaults: dict[tuple[float, ...], Array]


class Robot(RobotQueries):
    """The dynamics of one robot.

    Args:
        description: The robot as described in its file, from an importer. Most callers use `from_file`.

    Raises:
        InvalidArgumentError: `description` is something else, such as the path of a file.
    """

    def __init__(self, description: Description, **options: Any) -> None:
        if options or not isinstance(description, Description):
            others = f" and the options {', '.join(options)}" if options else ""
            raise InvalidArgumentError(
                f"Robot takes a Description alone, found {found(description)}{others}: Robot.from_file(path) reads a "
                "file, Robot.from_urdf(..) URDF, Robot.from_text(..) a text",
                path="description",
            )
        tree = tree_of(description)
        bodies = weld(tree)
        rows = Rows(tree, bodies.tree)
        shared = Shared(description, rows, KernelLibrary(tree), {name: i for i, name in enumerate(tree.links)}, {})
        about = described(tree, rows.sizes, description)
        self._begin(shared, about, tree.configuration, tree, bodies, np.array(description.gravity))

    def _begin(
        self, shared: Shared, about: RobotDescription, at: Configuration, tree: Tree, bodies: Weld, gravity: Array
    ) -> None:
        """Sets the attributes of a robot, whether it was loaded or overlaid."""
        super().__init__(about, at, tree.limits)
        self._tree, self._weld, self._gravity = tree, bodies, gravity
        self._description, self._rows, self._library, self._link_index, self._defaults = shared
        self._signatures: dict[tuple[str, str, Variant], Signature] = {}
        self.bound_calls: dict[str, Call] = {}
        self.row_calls: dict[str, RowCalls] = {}
        self._overlay_cache = OverlayCache()
        self._workers = 1

    @property
    def workers(self) -> int:
        """The number of threads that compute a large batch, 1 by default. The results are the same to the last bit.

        The argument `workers` of a call replaces it. Only batches with one leading axis are split, and small ones are
        computed by the calling thread. The threads are kept for later calls. Set it to the number of cores that no
        other work needs.
        """
        return self._workers

    @workers.setter
    def workers(self, count: int) -> None:
        self._workers = checked_workers(count)
        for name, calls in self.row_calls.items():
            self.bound_calls[name] = calls.with_threads(self._workers)

    @property
    def _shared(self) -> Shared:
        return Shared(self._description, self._rows, self._library, self._link_index, self._defaults)

    @classmethod
    def from_urdf(
        cls,
        source: str | os.PathLike[str] | Any,
        *,
        root: RootType = "fixed",
        limits: ReadLimits | None = None,
        joints: str | os.PathLike[str] | None = None,
        mimic: bool = True,
        loops: LoopHandling = "closed",
    ) -> Robot:
        """Reads a robot from URDF.

        Args:
            source: A path, the XML text itself, or a loaded URDF object of urchin, urdfpy or yourdfpy.
            root: How the root link moves in the world: "fixed", "floating" or "planar". If it moves, its joint
                `root_joint` is the first in `joint_names`.
            limits: The largest file or text that is read.
            joints: A YAML file with passive joint properties that the URDF does not contain; see
                `parsing/joint_files.py`.
            mimic: Whether joints that mimic others follow them, so that q, v and tau contain only the mimicked ones;
                False: each joint moves by itself, as in a hand with a motor per finger.
            loops: Of a file with closed loops of links: "closed" refuses efforts, accelerations and what follows from
                them, because the forces of the closing joints are not computed; "cut" computes with the tree alone.

        Raises:
            UrdfError: The description is malformed; the message contains file, line, element and cause.
            InvalidArgumentError: `root` is not a kind of root, or the file gives the robot a moving root already, or
                the file is xacro, which `from_file` reads.
            ConfigurationError: `joints` is not a valid joint file, or does not fit the robot; the message contains
                file, line and key.
            NotFoundError: The file does not exist.
            ResourceExhaustedError: The file or text is larger than `limits`.
        """
        is_text = isinstance(source, str | bytes | os.PathLike)
        if is_text and str(source).endswith(xacro.SUFFIX):
            raise InvalidArgumentError(f"{source} is a xacro file: Robot.from_file runs it", path="source")
        return cls(reading.completed(reader.read(source, limits=limits), root, joints, mimic, loops))

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        root: RootType = "fixed",
        limits: ReadLimits | None = None,
        joints: str | os.PathLike[str] | None = None,
        mimic: bool = True,
        loops: LoopHandling = "closed",
        arguments: Mapping[str, str] | None = None,
    ) -> Robot:
        """Reads a robot from a file of URDF, MuJoCo's MJCF, SDFormat or xacro; the format is determined by the file.

        Args:
            path: The file. A file named `*.xacro` is a program: it is run, and may read all files that its user may.
            root: As for `from_urdf`.
            limits: The largest total size of all its files.
            joints: As for `from_urdf`.
            mimic: As for `from_urdf`.
            loops: As for `from_urdf`.
            arguments: The arguments of a xacro file, by name.

        Raises:
            DynError: As `from_urdf`; `UrdfError` for an element that cannot be represented too.
            InvalidArgumentError: `arguments` are given for a file without arguments.
            UnimplementedError: The file is xacro, and the package xacro is not installed.
        """
        description = reading.read_file(path, limits=limits, arguments=arguments)
        return cls(reading.completed(description, root, joints, mimic, loops))

    @classmethod
    def from_text(
        cls,
        text: str | bytes,
        *,
        root: RootType = "fixed",
        limits: ReadLimits | None = None,
        joints: str | os.PathLike[str] | None = None,
        mimic: bool = True,
        loops: LoopHandling = "closed",
    ) -> Robot:
        """Reads a robot from a text of URDF, MJCF or SDFormat; see `from_file`.

        Safe for untrusted text: opens no file except `joints`, runs nothing, and refuses includes. Xacro text is not
        expanded, so it is an incomplete URDF.
        """
        return cls(reading.completed(reading.read_text(text, limits=limits), root, joints, mimic, loops))

    def __reduce__(self) -> tuple[Any, ...]:
        known = {name: self.__dict__[name] for name in ("massless_joint",) if name in self.__dict__}
        return type(self), (self._description,), known  # with the property that is slow to compute, if it is known

    @property
    def gravity(self) -> Array:
        """(3,) m/s^2 in world axes, used by calls without a gravity. It may have leading axes for several robots."""
        return self._gravity

    @property
    def as_described(self) -> Description:
        """The description of the robot, as read from a file.

        Raises:
            UnimplementedError: No file can describe it: an overlay locks joints, or its numbers have leading axes.
        """
        return self._description

    @property
    def tree(self) -> Tree:
        """The robot as parent-first arrays, one body per link."""
        return self._tree

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of the robot's numbers, including gravity; () for a single robot."""
        return broadcast({"the robot's numbers": self._tree.lead, "its gravity": self._gravity.shape[:-1]})

    @property
    def bodies(self) -> Weld:
        """The moving bodies, and the body of each link."""
        return self._weld

    @cached_property
    def without_passive(self) -> Robot:
        """This robot without passive forces, which answers calls with `passive=False`.

        The robot itself if it has no passive forces; else a robot with kernels of its own, made on first use.
        """
        return type(self)(without_passive(self._description)) if self._tree.passive.acts else self

    def acting(self, row: Row, method: str, passive: bool) -> Robot:
        """Returns this robot, or the one without passive forces if `passive` is False and this makes a difference.

        Args:
            row: The row of the table.
            method: The choice of the option that selects the kernel.
            passive: Whether passive forces act.
        """
        return self if self._acts(row, method, passive) else self.without_passive

    def _acts(self, row: Row, method: str, passive: bool) -> bool:
        """Whether `acting` returns this robot."""
        return passive or (isinstance(row, Query) and not row.passive[method] & self._tree.passive.acts)

    @property
    def certificates(self) -> Mapping[str, Certificate]:
        """Certificates of the kernels made so far, by kernel; `prepare` makes kernels.

        Names of kernels without passive forces end with ` (without passive forces)`.
        """
        own = self._library.certificates
        if self.__dict__.get("without_passive", self) is self:
            return own
        others = self.without_passive.certificates.items()
        return own | {
            f"{name} (without passive forces)": replace(certificate, kernel=f"{name} (without passive forces)")
            for name, certificate in others
        }

    @property
    def receipt(self) -> Receipt:
        """The receipt of the import (see `import_receipt`), with the certificates of the kernels made so far."""
        return self._import_receipt.with_certificates(
            {name: certificate.to_dict() for name, certificate in self.certificates.items()},
            [note for certificate in self.certificates.values() for note in certificate.notes()],
        )

    @cached_property
    def _import_receipt(self) -> Receipt:
        return import_receipt(self._description, self._tree, self._weld)

    @property
    def description(self) -> RobotDescription:
        """The description for clients, with the certificates of the kernels made so far."""
        certificates = {name: certificate.to_dict() for name, certificate in self.certificates.items()}
        return msgspec.structs.replace(self._about, certificates=certificates)

    def share(self, robots: Iterable[Robot]) -> None:
        """Uses the kernels of one of these robots if both are overlaid on the same robot; else does nothing."""

    def close(self) -> None:
        """Does nothing; exists so that control code can treat local and remote robots alike."""

    def prepare(
        self, queries: Iterable[str] | None = None, progress: Callable[[str, float], None] | None = None
    ) -> None:
        """Makes kernels, so that later calls do not wait for the compiler.

        Args:
            queries: Names of queries, and of the purposes `control`, `verify` and `simulate` (see `preparation`). None
                means `control`, the queries of control loops. All methods are made, without external wrenches. A method
                that needs too many operations is logged and skipped, unless it is the first of its query.
            progress: Called after each kernel with its name and the time it took in seconds.

        Raises:
            InvalidArgumentError: There is no query or purpose of that name.
            ResourceExhaustedError: The first method of a query needs too many operations.
        """
        names = ["control"] if queries is None else [queries] if isinstance(queries, str) else list(queries)
        chosen = [(row, method, self.signature(row, method)) for row, method in preparation.chosen(names)]
        wanted = [signature for row, method, signature in chosen if not (signature.empty or self._refusal(row, method))]
        with ExitStack() as second_thread:
            for row, method, signature in chosen:
                begun = time.perf_counter()
                if signature in wanted:
                    try:
                        self._kernel(signature)
                        self._bind(row, {row.kernel_option: method} if row.kernel_option else {})
                    except ResourceExhaustedError as refusal:
                        if method == next(iter(row.kernels)):
                            raise
                        _LOG.warning("%s: %s", self.name, refusal)
                    if signature == wanted[0]:  # the other kernels use its frames and its test states
                        second_thread.enter_context(self._library.making(wanted[1:]))
                if progress is not None:
                    progress(signature.name, time.perf_counter() - begun)
        preparation.load_modules(names)
        _ = self.massless_joint  # slow to compute, so computed here

    def study(
        self,
        vary: Mapping[str, Any],
        outputs: Mapping[str, Any],
        *,
        samples: Mapping[str, Any] | None = None,
        keep: Sequence[str] = (),
        check: Sequence[str] = (),
    ) -> Any:
        """Returns a study: queries at millions of states, reduced as they are computed; see docs/studies.md.

        Args:
            vary: The quantities by target, each a map with the fields of `studies.plan.Vary`.
            outputs: By name, each a map with the fields of `studies.study.Output`.
            samples: By dimension, each a map with the fields of `studies.plan.Samples`.
            keep: Dimensions that reductions keep.
            check: Limits whose violations are counted: position, velocity, effort.

        Returns:
            A `studies.study.Study`, with the methods `explain`, `run` and `state`.

        Raises:
            InvalidArgumentError: A field is unknown or has the wrong value; `path` names it.
            NotFoundError: The robot has no link or joint of that name.
        """
        studies = importlib.import_module("dyn_service.studies.study")  # above this module
        fields = {"vary": vary, "outputs": outputs, "samples": samples or {}, "keep": keep, "check": check}
        return studies.Study(self, studies.specification(fields))

    def export(
        self,
        queries: Iterable[str],
        folder: str | os.PathLike[str],
        *,
        wrenches: Iterable[str] = (),
        payload: Iterable[str] = (),
        friction: bool = False,
        acados: str | None = None,
        target: str = "host",
        name: str | None = None,
        force: bool = False,
    ) -> list[Path]:
        """Writes queries as C functions that need no Python; see docs/export.md.

        Args:
            queries: Names of queries, or `QUERY:METHOD` for a choice of its method, frame or integrator;
                `QUERY+QUERY` is one function of both.
            folder: Where to write; it is created.
            wrenches: Links on which the functions take external wrenches.
            payload: Links that carry a body whose mass, centre and inertia are inputs.
            friction: Whether damping and Coulomb friction of the joints are inputs.
            acados: The integrator of discrete dynamics for acados, which are written too, as C source; None: nothing.
            target: The processor, one of `kernels.export.TARGETS`.
            name: The first part of all names; None: the robot's name.
            force: Whether to overwrite existing files.

        Returns:
            The files: object file, header, self-test, CMake file, acados' source if asked for, and the shared library
            if a linker is installed.

        Raises:
            UnimplementedError: There is no such query, or it is a computation.
            InvalidArgumentError: An argument is invalid, a query has no inputs, a file exists, or the folder cannot be
                written.
            NotFoundError: The robot has no link of that name.
            FailedPreconditionError: A query has no answer for this robot, or none that is finite at the states of the
                self-test; or for acados, nq is not nv.
            ResourceExhaustedError: A query needs too many operations.
        """
        exporting = importlib.import_module("dyn_service.engine.export")  # imports the tracer
        options = {"wrenches": wrenches, "payload": payload, "friction": friction, "acados": acados, "target": target}
        written: list[Path] = exporting.export(self, queries, folder, **options, name=name, force=force)
        return written

    def export_fmu(
        self,
        file: str | os.PathLike[str],
        *,
        version: int = 3,
        integrator: str = DEFAULT_STEP,
        dt: float = 1e-3,
        effort_limits: bool = False,
        target: str = "host",
        name: str | None = None,
        force: bool = False,
        payload: str | None = None,
        friction: bool = False,
        imus: Sequence[str] = (),
    ) -> Path:
        """Writes the robot as an FMU that simulates it without Python; see docs/export.md.

        Args:
            file: The FMU.
            version: Of FMI, 2 or 3.
            integrator: One of `step`.
            dt: Length of a step, s; the FMU has it as a parameter.
            effort_limits: Whether efforts are clipped to their limits.
            target: The processor, as in `export`.
            name: The FMU's model identifier; None: the robot's name.
            force: Whether to overwrite an existing file.
            payload: The link of a payload, whose mass and centre are parameters; None: no payload.
            friction: Whether damping and Coulomb friction of joints are parameters.
            imus: The links at whose origins an inertial measurement unit is read.

        Returns:
            The file.

        Raises:
            InvalidArgumentError: An argument is invalid, the payload's link never moves, the file exists, or it cannot
                be written.
            NotFoundError: The robot has no such link.
            FailedPreconditionError: No C compiler for the target is installed, the robot has no movable joints, or
                steps of `dt` are too long for the damping, friction or springs of a joint.
            UnimplementedError: There are no FMUs for the target.
            ResourceExhaustedError: A step needs too many operations.
        """
        exporting = importlib.import_module("dyn_service.engine.fmu")  # imports the tracer
        options = {"version": version, "integrator": integrator, "dt": dt, "effort_limits": effort_limits}
        options |= {"payload": payload, "friction": friction, "imus": imus}
        written: Path = exporting.export_fmu(self, file, **options, target=target, name=name, force=force)
        return written

    def has_kernel(
        self, row: Query, method: str = "", variant: Variant = WITHOUT_WRENCHES, *, passive: bool = True
    ) -> bool:
        """Whether a kernel is in this process, so that a call needs neither the compiler nor the store.

        Args:
            row: The row of the table.
            method: The choice of the option that selects the kernel; "" if there is a single kernel.
            variant: Its optional inputs.
            passive: Whether passive forces act.
        """
        variant = self._variant(row, variant)
        if row.constant or self._refusal(row, method, numbers=False):
            return True
        if not (variant.overlay or self._acts(row, method, passive)):
            other = self.__dict__.get("without_passive")  # callers of this method have no time to create one
            return other is not None and other.has_kernel(row, method, variant)
        needed = self._signatures_of(row, method, variant)
        there = all(signature.empty or signature in self._library for signature in needed)
        return there or (not variant.overlay and bool(self._refusal(row, method)))

    def load_kernel(
        self,
        row: Query,
        method: str = "",
        variant: Variant = WITHOUT_WRENCHES,
        *,
        passive: bool = True,
        make: bool = False,
    ) -> bool:
        """Loads a kernel from memory or from the store on disk; returns whether it is available.

        Unless `make` is set it never compiles, does not wait for a compiling thread, and takes some milliseconds,
        concurrently with any call. Single states then take the fast path. A server uses this for kernels compiled by
        `prepare` in another process.

        Args:
            row: The row of the table.
            method: The choice of the option that selects the kernel; "" if there is a single kernel.
            variant: Its optional inputs.
            passive: Whether passive joint properties act; kernels with an overlay have both forms.
            make: Whether a missing kernel is compiled.

        Raises:
            ResourceExhaustedError: The kernel was refused, by this or another process: it needs too many operations.
        """
        variant = self._variant(row, variant)
        if row.constant or self._refusal(row, method, numbers=False):
            return True
        options: dict[str, Any] = {row.kernel_option: method} if row.kernel_option else {}
        if not variant.overlay and (other := self.acting(row, method, passive)) is not self:
            loaded = other.load_kernel(row, method, variant, make=make)
            self._bind(row, options | {row.passive_option or "": False})
            return loaded
        for signature in self._signatures_of(row, method, variant):
            if signature.empty:
                continue
            if make:
                self._kernel(signature)
            elif not self._library.load(signature):
                return not variant.overlay and bool(self._refusal(row, method))  # refused without a kernel
        self._bind(row, options)
        return True

    def overlaid(self, overlay: Overlay, *, name: str | None = None) -> Robot:
        """Returns this robot with the numbers of an overlay.

        The numbers need no compilation: they are inputs of one kernel per row. Leading axes mean several robots, and
        broadcast against those of the inputs. For many calls with one overlay, such a robot is faster than passing the
        overlay to each call.

        Args:
            overlay: The changed numbers.
            name: The name of the new robot; None: this robot's name.

        Raises:
            InvalidArgumentError: A number has the wrong type, shape or size, or contradicts another; `path` names
                it.
            NotFoundError: The robot has no link or joint of that name.
        """
        return self._with_numbers(with_overlay(self._tree, self._weld, overlay, "overlay"), name)

    def overlay_of(self, others: Robot | Sequence[Robot]) -> Overlay:
        """Returns the overlay that turns this robot into `others`, which have the same links and joints.

        For several robots, such as thousands of edited files read with `from_urdf`, the numbers have a leading axis, so
        that one call evaluates all of them. Limits are not part of an overlay: the overlaid robot keeps its own.

        Raises:
            InvalidArgumentError: One of `others` has other links, joints, positions or locks than this robot or the
                first of `others`, or has leading axes already; the message names it.
        """
        alone = isinstance(others, Robot)
        robots = [others] if isinstance(others, Robot) else [*others]
        for k, other in enumerate(robots):
            if not isinstance(other, Robot):
                raise InvalidArgumentError(f"others[{k}] must be a Robot, found {found(other)}", path=f"others[{k}]")
        overlay = overlay_to(self._numbers, [other._numbers for other in robots])
        return mapped(overlay, lambda array, axes, place: np.asarray(array)[0]) if alone else overlay

    @property
    def _numbers(self) -> AlteredTrees:
        """The trees and gravity of this robot."""
        return AlteredTrees(self._tree, self._weld, self._gravity)

    def with_payload(self, payload: Payload) -> Robot:
        """Returns this robot with one more body, welded to a link: `overlaid` with a single payload.

        Raises:
            NotFoundError: The robot has no link of that name.
            InvalidArgumentError: The mass is negative, or the inertia is not physical.
        """
        return self._with_numbers(with_payload(self._tree, self._weld, payload, "payload"))

    def _with_numbers(self, altered: AlteredTrees, name: str | None = None) -> Robot:
        """Returns an `engine.overlaid_robot.OverlaidRobot`.

        The two classes need each other, so this import is late.
        """
        module = importlib.import_module("dyn_service.engine.overlaid_robot")
        robot: Robot = module.OverlaidRobot(self, altered, name)
        return robot

    def evaluate(
        self,
        queries: str | Sequence[str],
        inputs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        /,
        **given: Any,
    ) -> dict[str, Any]:
        """Returns the results of several queries, by query: see `RobotQueries.evaluate`.

        With `inputs` in a mapping, returns the outputs of one row of the table, by name, also those of a single output.

        Raises:
            UnimplementedError: There is no such query.
            InvalidArgumentError: An input or option is missing, unknown, or has the wrong shape, type or value; `path`
                names it. The list of queries is invalid.
            NotFoundError: The robot has no link or joint of that name.
            FailedPreconditionError: A query has no answer for this robot: it inverts the mass matrix, which is singular
                because a branch has no inertia along its joint, it requires independent joints, or loops are closed.
            ResourceExhaustedError: See `RobotQueries.evaluate`.
        """
        if inputs is not None:
            if not isinstance(inputs, Mapping):
                raise InvalidArgumentError(
                    "inputs are given by name, as in evaluate(names, q=q, v=v), or in one mapping; found "
                    f"an object of type {type(inputs).__name__} without a name",
                    path="inputs",
                )
            row = row_of_list(queries)
            check_names(row, inputs)
            return self._evaluate(row, inputs, options or {})
        row, required, others = call_of(queries, given)
        result = self._ask(row.name, required, others)
        if not row.parts:
            return {row.name: result}
        return self._with_own_axes(row, result, given) if result.__class__ is _Whole else result

    def _with_own_axes(self, row: Query, result: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the result of a list in which the leading axes of each row are those of its own inputs."""
        inputs = {
            name: names_of(spec.kind, value, name) if (spec := row.inputs[name]).kind in BY_NAME else value
            for name, value in given.items()
            if name in row.inputs and value is not None
        }
        leads = leads_of(row, inputs)
        gravity, overlay = row.first("gravity"), row.overlay
        changed = given.get(overlay or "")
        if overlay is not None:
            # Without the axes of the overlay's gravity, which only queries with this input have.
            numbers = None if changed is None else replace(changed, gravity=None)
            leads[overlay] = np.broadcast_shapes(self._tree.lead, overlay_lead(numbers))
        if gravity is not None and gravity not in leads:
            acting = self._gravity if changed is None or changed.gravity is None else changed.gravity
            leads[gravity] = np.shape(acting)[:-1]
        trimmed = with_own_axes(row, result, leads, self._sizes(links=row.links))
        return self._separately(row, given) if trimmed is None else trimmed

    def _separately(self, row: Query, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the result of a list, computed by one call for each of its queries."""
        calls = [
            call_of(part.name, {name: x for name, x in given.items() if name in part.parameters}) for part in row.parts
        ]
        return {part.name: self._ask(part.name, required, others) for part, required, others in calls}

    def _ask(self, row: str, given: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Any:
        call = self.bound_calls.get(row)
        answer = None if call is None else call(given, others)
        return self._answer(QUERIES[row], given, others) if answer is None else answer

    def _ask_into(self, row: str, given: tuple[Any, ...], others: tuple[Any, ...], out: Any, workers: Any) -> Any:
        entry, calls = QUERIES[row], self.row_calls.get(row)
        arrays = () if out is None else output_arrays(entry, out)
        count = self._workers if workers is None else checked_workers(workers)
        # Arrays of subclasses, whose operators may differ, are set by assignment.
        if calls is not None and all(array is None or type(array) is np.ndarray for array in arrays):
            answer = calls.into(given, others, arrays, count)
            if answer is not None:
                return answer
        if holds_labelled(given) or holds_labelled(others):
            return labelled(self, entry, dict(entry.named(given, others), out=out, workers=workers))
        answer = self._ask(row, given, others)
        return fill(entry, answer, arrays) if arrays else answer

    def _answer(self, row: Query, given: tuple[Any, ...], others: tuple[Any, ...]) -> Any:
        """Answers a call that is not bound, with any arguments, and binds its options; reports errors in arguments."""
        if holds_labelled(given) or holds_labelled(others):
            return labelled(self, row, row.named(given, others))
        inputs, options = row.arguments(given, others)
        if row.overlay is not None and inputs.get(row.overlay) is not None:
            view = self._view(row, inputs, checked_options(row, options))
            answer = view._ask(
                row.name, given, tuple(inputs.get(name, options.get(name)) for name in row.optional_arguments)
            )
            self._calls_of(row)
            return answer
        answer = row.result(self._evaluate(row, inputs, options))
        answer = _Whole(answer) if row.parts else answer
        self._bind(row, options | {name: inputs[name] for name in row.by_name if inputs.get(name) is not None})
        return answer

    def _bind(self, row: Query, options: Mapping[str, Any]) -> None:
        """Binds options of a row if a kernel for them is loaded and the mass matrix is regular where it is inverted.

        Args:
            row: The row of the table.
            options: Valid options, and valid inputs given by name; those not in it have their defaults.
        """
        if row.constant:
            return
        others = tuple(
            options.get(name, default)
            for name, default in zip(row.optional_arguments, row.argument_defaults, strict=True)
        )
        chosen = {
            name: value for name, value in zip(row.optional_arguments, others, strict=True) if name in row.options
        }
        method = chosen[row.kernel_option] if row.kernel_option else next(iter(row.kernels))
        robot = self.acting(row, method, chosen[row.passive_option]) if row.passive_option else self
        kinds = (WITHOUT_WRENCHES, WITH_WRENCHES) if row.wrenches is not None else (WITHOUT_WRENCHES,)
        loaded = [each for each in kinds if all(s in robot._library for s in robot._signatures_of(row, method, each))]
        calls = self._calls_of(row)
        before = calls.bound(others)
        if not loaded or (before is not None and before.loaded == loaded):
            return
        if robot._refusal(row, method) or robot._checks_states(row, method):
            return
        if robot.signature(row, method).padded:
            return  # no kernel takes inputs without entries as they are
        selection = self._rows.selection(row, chosen, self.name)
        world = row.axes_option is not None and chosen[row.axes_option] == "world"
        rows = None if selection is None or world else selection.rows
        bound, *checking = robot._bound_call(row, method, loaded, others, rows)
        in_place = not world and (selection is None or bound.in_place)
        finish = self._finish(row, selection, world=world, selected=in_place)
        calls.bind(others, replace(bound, finish=finish, in_place=in_place), *checking)
        self.bound_calls[row.name] = calls.with_threads(self._workers)

    def _calls_of(self, row: Query) -> RowCalls:
        calls = self.row_calls.get(row.name)
        if calls is None:
            named = {k: self._one_hot_links for k, name in enumerate(row.required) if row.inputs[name].kind == "link"}
            calls = self.row_calls[row.name] = RowCalls(row, named, self._overlay_cache)
            self.bound_calls[row.name] = calls.with_threads(self._workers)
        return calls

    def _bound_call(
        self,
        row: Query,
        method: str,
        loaded: Sequence[Variant],
        others: tuple[Any, ...],
        rows: Sequence[int] | None,
    ) -> tuple[BoundCall, DirectCall | None, DirectCall | None]:
        """Returns the call of a row with chosen options, and the arguments of `RowCalls.bind` that follow it.

        Args:
            row: The row of the table.
            method: The choice of the option that selects the kernel.
            loaded: The variants of the kernel that are loaded.
            others: The optional arguments of the row with these options.
            rows: The indices of the selected rows; None: all. If the calls write only these, `in_place` is true.
        """
        signature, library, defaults = self.signature(row, method), self._library, self._defaults_of(row)
        selection = None if rows is None or WITHOUT_WRENCHES not in loaded else library.selected(signature, rows)
        selection_with_wrenches = None
        if selection is not None and WITH_WRENCHES in loaded:
            selection_with_wrenches = library.selected(self._signatures_of(row, method, WITH_WRENCHES)[0], rows or ())
            selection = None if selection_with_wrenches is None else selection
        optional = dict(zip(row.optional_arguments, others, strict=True))
        for name in row.by_name:
            defaults[name] = self._argument(row, name, optional[name])
        fixed = {
            name: array for name, array in defaults.items() if name in row.by_name or name not in row.optional_arguments
        }
        # An input given by name is a one-hot vector that is fixed here; the name itself is compared like an option.
        accepted = {
            f"{name} by name" if name in row.by_name else name: x if name in row.by_name else defaults.get(name, x)
            for name, x in optional.items()
        }
        still, locked = self._still(row)
        zero_entries = {row.required[k]: locked for k in still}
        with_options = Arguments(accepted, fixed, zero_entries)
        options = {row.overlay, *row.options, *(f"{name} by name" for name in row.by_name)}
        accepted = {name: ANY if name in options else x for name, x in accepted.items()}
        any_options = Arguments(accepted, fixed, zero_entries)
        kernel = None
        direct = with_wrenches = checking = checking_with_wrenches = None
        if WITHOUT_WRENCHES in loaded:
            selected, kernel = (None, library.kernel(signature)) if selection is None else selection
            direct = library.direct_call(signature, any_options, None, selected)
            checking = library.direct_call(signature, with_options, None, selected)
        if WITH_WRENCHES in loaded:
            full_signature, poses = self._signatures_of(row, method, WITH_WRENCHES)
            conversion = library.wrench_conversion(
                poses, self._link_index, places(self._tree, self._weld, links=row.links)
            )
            if conversion is not None:
                selected = None if selection is None or selection_with_wrenches is None else selection_with_wrenches[0]
                with_wrenches = library.direct_call(full_signature, any_options, conversion, selected)
                checking_with_wrenches = library.direct_call(full_signature, with_options, conversion, selected)
        place = {name: k for k, name in enumerate(row.optional_arguments) if name not in row.by_name}
        operands = [(place.get(x.name, -1), defaults[x.name]) for x in signature.inputs if x.name in defaults]
        sizes = self._sizes(links=row.links)
        vectors = {k: row.inputs[x].dims(sizes) for k, x in enumerate(row.required) if row.inputs[x].scalar}
        work = library.work(signature) if kernel is not None else 0
        bound = BoundCall(
            kernel,
            direct,
            with_wrenches,
            operands,
            vectors,
            still,
            locked,
            None,
            selection is not None,
            loaded,
            signature if selection is None else selection[0].signature,
            work,
        )
        return bound, checking, checking_with_wrenches

    def _still(self, row: Query) -> tuple[list[int], list[int]]:
        """Returns the indices of the required inputs that must be 0 for locked joints, and their entries."""
        return [], []

    def _finish(self, row: Query, selection: Selection | None, *, world: bool, selected: bool) -> Finish | None:
        """Returns the conversion of a kernel's outputs to the result; None if the output is the result.

        Args:
            row: The row of the table.
            selection: The selected rows.
            world: Whether vectors are in world axes.
            selected: Whether the outputs consist of the selected rows only.
        """
        if row.result_type is None and not world and selection is None:
            return None
        if row.parts:
            return _results(row, self._rows.labels(row))
        labels, pose = self._rows.labels(row), row.required.index(row.pose) if row.pose else -1

        def finish(answer: Any, given: tuple[Any, ...]) -> Any:
            outputs = dict(zip(row.outputs, answer if isinstance(answer, tuple) else (answer,), strict=True))
            if world:
                self._rows.turn_to_world(outputs, row, self._rotations(given[pose]))
            outputs.update(labels)
            if selection is not None:
                selection.apply(outputs, selected=selected)
            return row.result(outputs)

        return finish

    def _signatures_of(self, row: Query, method: str, variant: Variant) -> tuple[Signature, ...]:
        """Returns the signatures of the kernels of a call: with external wrenches also that of the links' poses."""
        kernel = self.signature(row, method, variant)
        return (kernel, self.signature(QUERIES["link_poses"], "")) if variant.wrenches else (kernel,)

    def repeat_steps(self, *arguments: Any) -> bool:
        """Computes many steps of a simulation in compiled code: `rollouts.repeat_steps`."""
        return rollouts.repeat_steps(self, *arguments)

    def term_of_law(self, name: str, inputs: Mapping[str, Array]) -> Array:
        """Returns a term of a control law at a state: `rollouts.evaluated`."""
        return rollouts.evaluated(self, name, inputs)

    def _compute(self, row: str, **arguments: Any) -> Any:
        entry = COMPUTATIONS[row]
        if holds_labelled(arguments):
            return labelled(self, entry, arguments)
        robot = self.asked(entry, arguments)
        # A gravity in the arguments replaces the robot's own, which may have leading axes.
        lead = robot.lead if arguments.get("gravity") is None else robot.tree.lead
        if lead:
            positions = entry.of_kind("position")
            for parameter in (each for each, name in entry.parameters.items() if name in positions):
                arguments[parameter] = with_leading_axes(arguments[parameter], lead)
        return entry.function("run")(robot, **arguments)

    def asked(self, row: Computation, arguments: dict[str, Any]) -> Robot:
        """Returns the robot that computes: this robot with the overlay, payload and `passive` of the arguments.

        Removes these from the arguments.

        Args:
            row: The row of the table.
            arguments: Inputs and options by their names on the wire, or the method's arguments.

        Raises:
            InvalidArgumentError: An argument is invalid or contradicts another.
            NotFoundError: The robot has no link or joint of that name.
        """
        self.check_answer(row)
        robot, passive = self, True
        if row.passive_option is not None:
            passive = checked_option(row.options[row.passive_option], arguments.pop(row.passive_option, True))
        for name in row.of_kind("overlay"):
            overlay = arguments.pop(name, None)
            if overlay is not None:
                robot = robot._view(row, {**arguments, name: overlay}, {row.passive_option or "": passive}, "")
        for name in row.of_kind("payload"):
            payload = arguments.pop(name, None)
            robot = robot if payload is None else robot.with_payload(payload)
        robot._hold_still(row, arguments)
        return robot.acting(row, "", passive)

    def _hold_still(self, row: Computation, arguments: dict[str, Any]) -> None:
        """Sets the efforts of locked joints to 0 in the arguments of a computation; refuses motions of these joints."""

    def _evaluate(self, row: Query, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = checked_options(row, options)
        if row.constant:
            return self._constant(row, chosen)
        if row.overlay is not None and inputs.get(row.overlay) is not None:
            rest = dict(inputs)
            return self._view(row, rest, chosen)._evaluate(row, rest, chosen)
        name_of_wrenches = row.wrenches
        wrenches = None if name_of_wrenches is None else inputs.get(name_of_wrenches)
        method = chosen[row.kernel_option] if row.kernel_option else ""
        if (
            row.passive_option is not None
            and (other := self.acting(row, method, chosen[row.passive_option])) is not self
        ):
            return other._evaluate(row, inputs, {**chosen, row.passive_option: True})
        signature = self.signature(row, method, WITHOUT_WRENCHES if wrenches is None else WITH_WRENCHES)
        self.check_answer(row, method)
        arguments = {
            name: self._argument(row, name, inputs.get(name))
            for name in row.inputs
            if name not in (name_of_wrenches, row.overlay)
        }
        arguments |= self._parameters(row)
        self._check_still(row, arguments)
        pose = arguments[row.pose] if row.pose else self._tree.configuration.neutral
        if self._checks_states(row, method):
            self.check_inertia(row.name, pose)
        if name_of_wrenches is not None and wrenches is not None:
            if not signature.empty:
                poses = QUERIES["link_poses"]
                self._kernel(self.signature(poses, ""))  # bound calls need it for all frames
                self._bind(poses, {})
            acting = link_wrenches(wrenches, self._link, lambda: self._rotations(pose))
            arguments[name_of_wrenches] = on_links(acting, self._tree) if row.links else on_bodies(acting, self._weld)
        outputs = self._run(row, signature, arguments)
        if row.axes_option is not None and chosen[row.axes_option] == "world":
            self._rows.turn_to_world(outputs, row, self._rotations(pose))
        outputs.update(self._rows.labels(row))
        if (selection := self._rows.selection(row, chosen, self.name)) is not None:
            selection.apply(outputs)
        return outputs

    def cached_overlaid(self, overlay: Overlay, path: str) -> Robot:
        """Returns the robot with this overlay from the cache, or makes it and keeps it there, unlike `overlaid`.

        Args:
            overlay: The overlay.
            path: Its path, for errors.

        Raises:
            DynError: As `overlaid`.
        """

        def make() -> Robot:
            return self._with_numbers(with_overlay(self._tree, self._weld, overlay, path))

        view: Robot = self._overlay_cache.get(overlay, make) if isinstance(overlay, Overlay) else make()
        return view

    def _view(self, row: Row, inputs: dict[str, Any], options: Mapping[str, Any], path: str = "inputs.") -> Robot:
        """Returns the robot that answers a call with an overlay, and removes the overlay from the inputs."""
        name = row.first("overlay") or ""
        overlay = inputs.pop(name)
        view = self.cached_overlaid(overlay, path + name)
        self._check_once(row, overlay, path + name, inputs, options.get(row.passive_option or "", True))
        return view

    def _check_once(self, row: Row, overlay: Overlay, path: str, inputs: Mapping[str, Any], passive: bool) -> None:
        """Refuses an overlay that contradicts another argument."""
        gravity = row.first("gravity")
        if overlay.gravity is not None and gravity is not None and inputs.get(gravity) is not None:
            raise InvalidArgumentError(
                f"{gravity} is given twice, as an argument and in the overlay: omit one", path=f"{path}.gravity"
            )
        if overlay.joints and not passive:
            raise InvalidArgumentError(
                f"the overlay contains passive joint properties, which {row.passive_option}=False switches off",
                path=f"{path}.joints",
            )

    def _parameters(self, row: Query) -> dict[str, Array]:
        """Returns the numbers of the robot as inputs of a parametric kernel, by operand; none for other kernels."""
        return {}

    def _check_still(self, row: Query, arguments: Mapping[str, Array]) -> None:
        """Refuses motions of locked joints."""

    def _constant(self, row: Query, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs of a row that depends on no state, computed from the tree."""
        module, _, name = row.kernels[""].partition(".")
        function = getattr(importlib.import_module(f"dyn_service.dynamics.{module}"), name)
        options = {name: value for name, value in chosen.items() if name != row.rows_option}
        outputs: dict[str, Any] = {**self._rows.labels(row), **function(self._tree, **options)}
        if (selection := self._rows.selection(row, chosen, self.name)) is not None:
            selection.apply(outputs)
        return outputs

    def _run(self, row: Query, signature: Signature, arguments: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the outputs of a row. Those without entries, which no kernel computes, are added."""
        inputs, lead = operands(signature, arguments)
        answer = () if signature.empty else self._kernel(signature)(*inputs)
        arrays = answer if isinstance(answer, tuple) else (answer,)
        computed = dict(zip((operand.name for operand in signature.outputs), arrays, strict=True))
        if len(computed) == len(row.outputs):
            return computed
        sizes = self._sizes(links=row.links)
        return {
            name: computed[name] if name in computed else np.zeros(lead + spec.dims(sizes))
            for name, spec in row.outputs.items()
        }

    def _variant(self, row: Query, variant: Variant) -> Variant:
        """Returns the variant of the kernels that this robot uses."""
        return variant

    def _kernel(self, signature: Signature) -> np.ufunc:
        return self._library.kernel(signature)

    def signature(self, row: Query, method: str, variant: Variant = WITHOUT_WRENCHES) -> Signature:
        """Returns the signature of a kernel of this robot: of a row, one of its methods, with or without wrenches."""
        variant = self._variant(row, variant)
        key = (row.name, method, variant)
        known = self._signatures.get(key)
        if known is None:
            if len(self._signatures) >= MAX_SIGNATURES:
                self._signatures.clear()
            known = self._signatures[key] = signature_of(row, method, self._sizes(links=row.links), variant)
        return known

    def _sizes(self, *, links: bool) -> Sizes:
        return self.sizes if links else msgspec.structs.replace(self.sizes, nb=len(self._weld.tree))

    @property
    def sizes(self) -> Sizes:
        """The sizes of the table's dimensions; `nb` is the number of links."""
        return self._rows.sizes

    def _argument(self, row: Query, name: str, value: Any) -> Array:
        """Returns an input as an array of doubles with checked core shape."""
        if value is None:
            if name not in row.optional:
                raise missing_input(row, name)
            return self._default_of(row, name)
        spec = row.inputs[name]
        if spec.kind in BY_NAME:
            path = f"inputs.{name}"
            return one_hot(spec.kind, names_of(spec.kind, value, path), self.link_names, self.name, path)
        return operand(name, spec, value, spec.dims(self._sizes(links=row.links)), len(self.joint_names))

    def _refusal(self, row: Query | Computation, method: str = "", *, numbers: bool = True) -> str:
        """Returns why a method has no result, and no kernel, for this robot; "" if it has. numbers: whether to consider
        the numbers of the robot, which an overlay changes.
        """
        inverts = method in getattr(row, "inverts_mass_matrix", ())
        if self._description.loops and (row.has_loads or inverts):
            return self._description.loop_refusal
        if method in getattr(row, "rejects_mimic", ()) and self._tree.has_mimics:
            name, mimic = next((n, m) for n, m in zip(self._tree.moving_joints, self._tree.mimic, strict=True) if m)
            return (
                f"joint '{name}' follows '{mimic.joint}', and (19b) requires independent joints; load the robot "
                "without mimic"
            )
        if numbers and inverts and self.massless_joint is not None:
            return (
                f"the branch of joint '{self.massless_joint}' has no inertia along it beyond rounding, so no finite "
                "effort gives a finite acceleration"
            )
        return ""

    def check_answer(self, row: Query | Computation, method: str = "") -> None:
        """Raises FailedPreconditionError, which names the joint, for a method that has no result for this robot."""
        if isinstance(row, Query) and row.parts and self._refusal(row, method):
            for part, choice in row.choices(method):
                self.check_answer(part, choice)
        if reason := self._refusal(row, method):
            by_choice = isinstance(row, Query) and not all(self._refusal(row, choice) for choice in row.kernels)
            name = f"{row.name} with {row.kernel_option}='{method}'" if by_choice else row.name  # type: ignore[union-attr]
            raise FailedPreconditionError(f"{name} has no answer for robot '{self.name}': {reason}")

    def _defaults_of(self, row: Query) -> dict[str, Array]:
        """Returns the default values of the optional inputs except wrenches, and the numbers of an overlay."""
        optional = row.optional - {row.wrenches, row.overlay}
        return {name: self._default_of(row, name) for name in row.inputs if name in optional} | self._parameters(row)

    def _default_of(self, row: Query, name: str) -> Array:
        """Returns the default value of an input other than wrenches."""
        default = row.inputs[name].default
        return self._gravity if default is None else self._defaults.setdefault(default, np.array(default))

    def _checks_states(self, row: Query, method: str) -> bool:
        """Whether a method has a result only at states where M(q) is positive definite, which some may not be."""
        return method in row.inverts_mass_matrix and not self._has_possible_inertia

    def check_inertia(self, query: str, q: Array, free: Array | None = None) -> None:
        """Raises FailedPreconditionError, which names the joint, at positions (..., nq) where M(q) is not positive
        definite. query: what is asked. free: (nv,) 0 for joints whose motion is prescribed, else 1; None: all move.
        """
        if self._has_possible_inertia:
            return
        bodies = self._weld.tree if free is None else replace(self._weld.tree, free=free)
        branch, size = branch_inertias(bodies, q)
        lacking = lacks_inertia(branch, size)
        if not lacking.any():
            return
        index = tuple(np.argwhere(lacking.any(axis=-1))[0].tolist())
        k = int(np.flatnonzero(lacking[index]).max())
        raise FailedPreconditionError(
            f"{query} has no answer for robot '{self.name}'{f' at state {list(index)}' if index else ''}: the inertia "
            f"along joint '{self._configuration.velocity_joints[k]}' is {branch[index][k]:g}, expected more than 0; "
            f"{self.impossible_inertia}"
        )

    @property
    def impossible_inertia(self) -> str:
        """The links with an inertia that no body has, as text."""
        links = zip(self._tree.links, self._tree.inertia, self._weld.body, strict=True)
        names = [f"'{name}'" for name, inertia, body in links if body >= 0 and not is_possible(inertia)]
        return f"no body has the inertia of {'link' if len(names) == 1 else 'links'} {', '.join(names)}"

    @cached_property
    def _has_possible_inertia(self) -> bool:
        """Whether each moving body has an inertia that a body can have, so that M(q) is never indefinite."""
        return all(map(is_possible, self._weld.tree.inertia))

    @cached_property
    def massless_joint(self) -> str | None:
        """The movable joint nearest the leaves whose branch has no inertia along it in any configuration, or None."""
        return massless_joint(self._weld.tree)

    def singular_joint(self, q: ArrayLike) -> str | None:
        """Returns the movable joint nearest the leaves whose branch has no inertia along it at `q`, or None.

        None means that M(q) is positive definite.

        Args:
            q: (nq,) positions, small enough that nothing overflows.
        """
        return singular_joint(self._weld.tree, np.asarray(q, dtype=np.float64))

    @cached_property
    def _one_hot_links(self) -> dict[str, Array]:
        """The input of a kernel for each link: a vector with 1 at its index."""
        return {name: one_hot("link", name, self.link_names, self.name, "") for name in self.link_names}

    def _rotations(self, q: Array) -> Array:
        """Returns R_WL of every link, (..., nl, 3, 3)."""
        rotations: Array = self._ask("link_poses", (q,)).rotation
        return rotations

    def _link(self, name: str, path: str) -> int:
        index = self._link_index.get(name) if isinstance(name, str) else None
        if index is None:
            of_frame = path.endswith(".frame")
            what, names = ("frame", ("world", *self.link_names)) if of_frame else ("link", self.link_names)
            raise NotFoundError(
                f"robot '{self.name}' has no {what} '{name}'{known_instead(name, names, f'its {what}s are')}", path=path
            )
        return index


class _Whole(dict[str, Any]):
    """The result of a list in which a query may have leading axes that only inputs of other queries have."""


def _results(row: Query, labels: Mapping[str, Any]) -> Finish:
    """Returns the conversion of the outputs of a list's kernel to its result, as `Query.result` does it."""
    parts, first = [], 0
    for part in row.parts:
        last = first + len(part.outputs)
        names = {name: labels[f"{part.name}.{name}"] for name in part.labels}
        parts.append((part.name, part.result_type, tuple(part.outputs), names, first, last))
        first = last
    core = len(next(iter(row.outputs.values())).shape)
    places = [[row.required.index(name) for name in part.required] for part in row.parts]

    def finish(answer: Any, given: tuple[Any, ...]) -> dict[str, Any]:
        results = {
            name: answer[k] if kind is None else kind(**names, **dict(zip(outputs, answer[k:end], strict=True)))
            for name, kind, outputs, names, k, end in parts
        }
        shape = answer[0].shape
        if len(shape) == core:
            return results  # of one state
        lead = shape[: len(shape) - core]
        for part_inputs in places:  # if each query has an input with all leading axes, so has its result
            for k in part_inputs:
                x = given[k]
                if x.__class__ is np.ndarray and x.shape[:-1] == lead:
                    break
            else:
                return _Whole(results)
        return results

    return finish
