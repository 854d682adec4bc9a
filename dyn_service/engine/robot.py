"""A robot in this process: the table of queries, answered by kernels compiled for this robot.

    robot = Robot.from_urdf("urdf/panda.urdf")
    tau = robot.inverse_dynamics(q, v, a)          # (..., nv) from (..., nq), (..., nv), (..., nv)

All inputs broadcast over leading axes. The result of a state is the same to the last bit alone and in a batch. NaN in
gives NaN out, and so does an angle beyond 2^45 rad (3.5e13), whose sine has no correct digit. A server refuses such
inputs with an error that gives the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from dyn_service.api.arguments import DEFAULT_STEP, mapped
from dyn_service.api.arrays import found, holds_labelled, with_leading_axes
from dyn_service.api.cost import leads_of, overlay_lead
from dyn_service.api.description import RobotDescription, Sizes
from dyn_service.api.inputs import check_names, labelled, unknown_name
from dyn_service.api.lists import call_of, row_of_list, with_own_axes
from dyn_service.api.named import names_of
from dyn_service.api.queries import (
    COMPUTATIONS,
    QUERIES,
    Array,
    Computation,
    Overlay,
    Payload,
    Query,
    Row,
)
from dyn_service.api.spec import BY_NAME, WITHOUT_WRENCHES, Variant
from dyn_service.engine import rollouts
from dyn_service.engine.altered_trees import overlay_to, with_overlay, with_payload
from dyn_service.engine.computations import functions_of
from dyn_service.engine.descriptions import import_receipt
from dyn_service.engine.evaluator import Evaluator
from dyn_service.engine.loops.simulation import ClosedSimulation
from dyn_service.engine.results import Untrimmed
from dyn_service.engine.robot_model import RobotModel
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.formulations.local_robot import LocalRobot
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.signature import Signature
from dyn_service.model.composite import Weld
from dyn_service.model.description import Description, LoopHandling, LoopJoint, RootType
from dyn_service.model.tree import Tree
from dyn_service.parsing import files as reading
from dyn_service.parsing import xacro
from dyn_service.parsing.report import Receipt
from dyn_service.parsing.urdf import reader
from dyn_service.parsing.xml_elements import ReadLimits
from dyn_service.support.documents import Document
from dyn_service.support.upward import upward


class Robot(LocalRobot):
    """The dynamics of one robot.

    Args:
        description: The robot as described in its file, from an importer. Most callers use `from_file`.

    Raises:
        InvalidArgumentError: `description` is something else, such as the path of a file.
    """

    def __init__(self, description: Description, **options: Any) -> None:
        if options or not isinstance(description, Description):
            unknown = f" and the options {', '.join(options)}" if options else ""
            raise InvalidArgumentError(
                f"Robot takes a Description alone, found {found(description)}{unknown}: Robot.from_file(path) reads a "
                "file, Robot.from_urdf(..) URDF, Robot.from_text(..) a text",
                path="description",
            )
        self._use(Evaluator(RobotModel.of(description)))

    @classmethod
    def _with(cls, evaluator: Evaluator) -> Self:
        """Returns the robot of an evaluator."""
        robot = cls.__new__(cls)
        robot._use(evaluator)
        return robot

    def _use(self, evaluator: Evaluator) -> None:
        model = evaluator.model
        super().__init__(model.client_description, model.configuration, model.tree.limits)
        self.evaluator = evaluator
        self._direct_calls = evaluator.direct_calls

    @property
    def workers(self) -> int:
        """The number of threads that compute a large batch, 1 by default. The results are the same to the last bit.

        The argument `workers` of a call replaces it. Only batches with one leading axis are split, and small ones are
        computed by the calling thread. The threads are kept for later calls. Set it to the number of cores that no
        other work needs.
        """
        return self.evaluator.workers

    @workers.setter
    def workers(self, count: int) -> None:
        self.evaluator.workers = count

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
            joints: A YAML file with passive joint properties, motors and loop joints that the URDF does not contain;
                see `parsing/joint_files.py`.
            mimic: Whether joints that mimic others follow them, so that q, v and tau contain only the mimicked ones;
                False: each joint moves by itself, as in a hand with a motor per finger.
            loops: Of a file with closed loops: with "closed", its loop joints close them, and efforts are refused if
                another element closes one; "cut" computes with the tree alone.

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
        return cls(reading.completed(description, root, joints, mimic, loops, path))

    @classmethod
    def from_text(
        cls,
        text: str | bytes,
        *,
        root: RootType = "fixed",
        limits: ReadLimits | None = None,
        joints: str | os.PathLike[str] | Document | None = None,
        mimic: bool = True,
        loops: LoopHandling = "closed",
    ) -> Robot:
        """Reads a robot from a text of URDF, MJCF or SDFormat; see `from_file`.

        Safe for untrusted text: opens no file except `joints`, runs nothing, and refuses includes. Xacro text is not
        expanded, so it is an incomplete URDF. `joints` may be the content of a joint file: a `Document`.
        """
        return cls(reading.completed(reading.read_text(text, limits=limits), root, joints, mimic, loops))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._with, (self.evaluator,)

    @property
    def gravity(self) -> Array:
        """(3,) m/s^2 in world axes, used by calls without a gravity. It may have leading axes for several robots."""
        return self.evaluator.model.gravity

    @property
    def free(self) -> Array:
        """(nv,): 0 for joints that an overlay locks, else 1."""
        return self.evaluator.model.free

    @property
    def fingerprint(self) -> str:
        """Hash of the robot, 32 hexadecimal digits; changes with any of its numbers."""
        return self.evaluator.model.fingerprint

    @property
    def as_described(self) -> Description:
        """The description of the robot, as read from a file.

        Raises:
            UnimplementedError: No file can describe it: an overlay locks joints, or its numbers have leading axes.
        """
        return self.evaluator.model.as_described

    @property
    def tree(self) -> Tree:
        """The robot as parent-first arrays, one body per link."""
        return self.evaluator.model.tree

    @property
    def loop_joints(self) -> tuple[LoopJoint, ...]:
        """The joints that close loops of the tree."""
        return self.evaluator.model.description.loop_joints

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of the robot's numbers, including gravity; () for a single robot."""
        return self.evaluator.model.lead

    @property
    def bodies(self) -> Weld:
        """The moving bodies, and the body of each link."""
        return self.evaluator.model.bodies

    @property
    def base(self) -> Robot:
        """The robot as loaded, whose kernels are used; this robot itself unless an overlay changed its numbers."""
        return self if self.evaluator.loaded is None else self._with(self.evaluator.loaded)

    @cached_property
    def without_passive(self) -> Robot:
        """This robot without passive forces, which answers calls with `passive=False`.

        The robot itself if it has no passive forces; else a robot with kernels of its own, made on first use.
        """
        evaluator = self.evaluator.without_passive
        return self if evaluator is self.evaluator else self._with(evaluator)

    def acting(self, row: Row, method: str, passive: bool) -> Robot:
        """Returns this robot, or the one without passive forces if `passive` is False and this makes a difference.

        Args:
            row: The row of the table.
            method: The choice of the option that selects the kernel.
            passive: Whether passive forces act.
        """
        return self if self.evaluator.acting(row, method, passive) is self.evaluator else self.without_passive

    @property
    def certificates(self) -> Mapping[str, Certificate]:
        """Certificates of the kernels made so far, by kernel; `prepare` makes kernels.

        Names of kernels without passive forces end with ` (without passive forces)`.
        """
        return self.evaluator.certificates

    @property
    def receipt(self) -> Receipt:
        """The receipt of the import (see `import_receipt`), with the certificates of the kernels made so far, and with
        what closed loops leave free once this is known.
        """
        receipt, loops = self._import_receipt, self.evaluator.closed_loops
        if loops is not None:
            receipt = receipt.with_freedom(loops.known_freedom, loops.open_warning)
        return receipt.with_certificates(
            {name: certificate.to_dict() for name, certificate in self.certificates.items()},
            [note for certificate in self.certificates.values() for note in certificate.notes()],
        )

    @cached_property
    def _import_receipt(self) -> Receipt:
        loaded = (self.evaluator.loaded or self.evaluator).model
        return import_receipt(loaded.description, loaded.tree, loaded.bodies)

    @property
    def description(self) -> RobotDescription:
        """The description for clients, with the certificates of the kernels made so far."""
        certificates = {name: certificate.to_dict() for name, certificate in self.certificates.items()}
        description = self.evaluator.model.described(certificates)
        loops = self.evaluator.closed_loops
        return description if loops is None else msgspec.structs.replace(description, freedom=loops.known_freedom)

    def share(self, robots: Iterable[Robot]) -> None:
        """Uses the kernels of one of these robots if both are overlaid on the same robot; else does nothing."""
        self.evaluator.share(robot.evaluator for robot in robots)

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
        self.evaluator.prepare(queries, progress)

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
        self._check_trees("studies")
        return upward("make_study")(self, vary=vary, outputs=outputs, samples=samples or {}, keep=keep, check=check)

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
        model = self.evaluator.model
        if model.not_exported:
            raise UnimplementedError(
                f"robot '{self.name}' with {model.not_exported} cannot be exported: a function has the numbers of one "
                "robot, whose joints move"
            )
        robot = self if model.loaded is None else Robot(replace(self.as_described, name=self.name))
        options = {"friction": friction, "acados": acados, "target": target, "name": name, "force": force}
        files: list[Path] = upward("export")(robot, queries, folder, wrenches=wrenches, payload=payload, **options)
        return files

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
        motors: bool = False,
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
            motors: Whether the motors of the robot's files limit the efforts by current, voltage and heat, and their
                currents and winding temperatures are outputs.

        Returns:
            The file.

        Raises:
            InvalidArgumentError: An argument is invalid, the payload's link never moves, the file exists, or it cannot
                be written.
            NotFoundError: The robot has no such link.
            FailedPreconditionError: No C compiler for the target is installed, the robot has no movable joints or no
                motors, or steps of `dt` are too long for the damping, friction, springs or motor of a joint.
            UnimplementedError: There are no FMUs for the target.
            ResourceExhaustedError: A step needs too many operations.
        """
        robot = self if self.evaluator.model.loaded is None else Robot(self.as_described)
        path: Path = upward("export_fmu")(
            robot,
            file,
            version=version,
            integrator=integrator,
            dt=dt,
            effort_limits=effort_limits,
            target=target,
            name=name,
            force=force,
            payload=payload,
            friction=friction,
            imus=imus,
            motors=motors,
        )
        return path

    def _check_trees(self, use: str) -> None:
        """Refuses robots with closed loops where the kernels of the tree are used directly."""
        if (loops := self.evaluator.closed_loops) is not None:
            raise FailedPreconditionError(
                f"{use} has no answer for robot '{self.name}': joint '{loops.joints.names[0]}' closes a loop, which "
                'compiled functions of the tree lack; loops="cut" takes the tree that is left'
            )

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
        altered = with_overlay(self.tree, self.bodies, overlay, "overlay")
        return Robot._with(self.evaluator.with_numbers(altered, name))

    def overlay_of(self, others: Robot | Sequence[Robot]) -> Overlay:
        """Returns the overlay that turns this robot into `others`, which have the same links and joints.

        For several robots, such as thousands of edited files read with `from_urdf`, the numbers have a leading axis, so
        that one call evaluates all of them. Limits are not part of an overlay: the overlaid robot keeps its own.

        Raises:
            InvalidArgumentError: One of `others` has other links, joints, positions or locks than this robot or the
                first of `others`, or has leading axes already; the message names it.
        """
        is_single = isinstance(others, Robot)
        robots = [others] if isinstance(others, Robot) else [*others]
        for k, other in enumerate(robots):
            if not isinstance(other, Robot):
                raise InvalidArgumentError(f"others[{k}] must be a Robot, found {found(other)}", path=f"others[{k}]")
        overlay = overlay_to(self.evaluator.model.numbers, [other.evaluator.model.numbers for other in robots])
        return mapped(overlay, lambda array, axes, place: np.asarray(array)[0]) if is_single else overlay

    def with_payload(self, payload: Payload) -> Robot:
        """Returns this robot with one more body, welded to a link: `overlaid` with a single payload.

        Raises:
            NotFoundError: The robot has no link of that name.
            InvalidArgumentError: The mass is negative, or the inertia is not physical.
        """
        altered = with_payload(self.tree, self.bodies, payload, "payload")
        return Robot._with(self.evaluator.with_numbers(altered))

    def evaluate(
        self,
        queries: str | Sequence[str],
        inputs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        /,
        **arguments: Any,
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
            return self._outputs(row, inputs, options or {})
        row, required, optional = call_of(queries, arguments)
        direct = self._direct_calls.get(row.name)
        result = None if direct is None else direct(required, optional)
        result = self._answer(row, required, optional) if result is None else result
        if not row.parts:
            return {row.name: result}
        return self._with_own_axes(row, result, arguments) if result.__class__ is Untrimmed else result

    def _with_own_axes(self, row: Query, result: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the result of a list in which the leading axes of each row are those of its own inputs."""
        inputs = {
            name: names_of(spec.kind, value, name) if (spec := row.inputs[name]).kind in BY_NAME else value
            for name, value in arguments.items()
            if name in row.inputs and value is not None
        }
        leads = leads_of(row, inputs)
        gravity, overlay = row.first("gravity"), row.overlay
        overlay_argument = arguments.get(overlay or "")
        if overlay is not None:
            # Without the axes of the overlay's gravity, which only queries with this input have.
            numbers = None if overlay_argument is None else replace(overlay_argument, gravity=None)
            leads[overlay] = np.broadcast_shapes(self.tree.lead, overlay_lead(numbers))
        if gravity is not None and gravity not in leads:
            gravity_used = (
                self.gravity
                if overlay_argument is None or overlay_argument.gravity is None
                else overlay_argument.gravity
            )
            leads[gravity] = np.shape(gravity_used)[:-1]
        with_axes = with_own_axes(row, result, leads, self.evaluator.model.sizes(row))
        return self._separately(row, arguments) if with_axes is None else with_axes

    def _separately(self, row: Query, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the result of a list, computed by one call for each of its queries."""
        calls = [
            call_of(part.name, {name: x for name, x in arguments.items() if name in part.parameters})
            for part in row.parts
        ]
        return {part.name: self._ask(part.name, required, optional) for part, required, optional in calls}

    def _outputs(self, row: Query, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns labels and outputs of a query by name."""
        for name in options:
            if name not in row.options:
                raise unknown_name(row.name, "option", name, row.options)
        required = tuple(inputs[name] for name in row.required)
        defaults = zip(row.optional_arguments, row.argument_defaults, strict=True)
        optional = tuple(
            options.get(name, default) if name in row.options else inputs.get(name) for name, default in defaults
        )
        return row.outputs_of(self.evaluator.answer(row, required, optional))

    def _ask(
        self,
        query: str,
        required: tuple[Any, ...],
        optional: tuple[Any, ...] = (),
        out: Any = None,
        workers: Any = None,
    ) -> Any:
        if out is None and workers is None:
            direct = self._direct_calls.get(query)
            if direct is not None and (result := direct(required, optional)) is not None:
                return result
        return self._answer(QUERIES[query], required, optional, out, workers)

    def _answer(
        self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...], out: Any = None, workers: Any = None
    ) -> Any:
        try:
            return self.evaluator.answer(row, required, optional, out, workers)
        except DynError:
            # Only now, because searching the fields of wrenches and overlays takes longer than most calls.
            if holds_labelled(required) or holds_labelled(optional):
                return labelled(self, row, dict(row.named(required, optional), out=out, workers=workers))
            raise

    def repeat_steps(self, *arguments: Any) -> bool:
        """Computes many steps of a simulation in compiled code: `rollouts.repeat_steps`."""
        return rollouts.repeat_steps(self.evaluator, *arguments)

    def term_of_law(self, name: str, inputs: Mapping[str, Array]) -> Array:
        """Returns a term of a control law at a state: `rollouts.evaluated`."""
        return rollouts.evaluated(self.evaluator, name, inputs)

    def _compute(self, row: str, **arguments: Any) -> Any:
        entry = COMPUTATIONS[row]
        if holds_labelled(arguments):
            return labelled(self, entry, arguments)
        robot = self.for_computation(entry, arguments)
        return functions_of(entry).run(robot, **arguments)

    def for_computation(self, row: Computation, arguments: dict[str, Any]) -> Robot:
        """Returns the robot that computes: this robot with the overlay, payload and `passive` of the arguments.

        Removes these from the arguments, and gives positions the leading axes of that robot.

        Args:
            row: The row of the table.
            arguments: Inputs and options by their names on the wire, or the method's arguments.

        Raises:
            InvalidArgumentError: An argument is invalid or contradicts another.
            NotFoundError: The robot has no link or joint of that name.
        """
        evaluator = self.evaluator.for_computation(row, arguments)
        model = evaluator.model
        # A gravity in the arguments replaces the robot's own, which may have leading axes.
        lead = model.lead if arguments.get("gravity") is None else model.tree.lead
        if lead:
            for name, value in arguments.items():
                spec = row.inputs.get(row.parameters.get(name) or name)
                if spec is not None and spec.kind == "position":
                    arguments[name] = with_leading_axes(value, lead)
        return self if evaluator is self.evaluator else self._with(evaluator)

    def signature(self, row: Query, method: str, variant: Variant = WITHOUT_WRENCHES) -> Signature:
        """Returns the signature of a kernel of this robot: of a row, one of its methods, with or without wrenches."""
        return self.evaluator.signature(row, method, variant)

    @property
    def sizes(self) -> Sizes:
        """The sizes of the table's dimensions; `nb` is the number of links."""
        return self.evaluator.model.client_description.sizes

    def check_inertia(self, query: str, q: Array, free: Array | None = None) -> None:
        """Raises FailedPreconditionError, which names the joint, at positions (..., nq) where M(q) is not positive
        definite. query: what is asked. free: (nv,) 0 for joints whose motion is prescribed, else 1; None: all move.
        """
        self.evaluator.model.check_inertia(query, q, free)

    @property
    def closed_motion(self) -> ClosedSimulation | None:
        """The motions that keep loops closed; None for a robot without loops."""
        loops = self.evaluator.closed_loops
        return None if loops is None else loops.simulation

    @property
    def massless_joint(self) -> str | None:
        """The movable joint nearest the leaves whose branch has no inertia along it in any configuration, or None."""
        return self.evaluator.model.massless_joint
