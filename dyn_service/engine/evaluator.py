"""Answers the queries of one robot by compiled kernels.

A later call goes `Robot.inverse_dynamics(..)` -> `Robot._ask` -> the direct form of the bound call (`engine.calls`), a
builtin function around machine code. The first call of a query, and one whose arguments compiled code cannot read, goes
through all steps of `Evaluator.answer`, which bind the direct form at their end:

    which numbers   an overlay among the arguments -> the evaluator of the overlaid robot
    which kernel    options -> a `BoundCall`: checked, refused or bound
    convert, run    `BoundCall.compute`, by the table in `engine.bound_calls`
    finish          axes, labels, selected rows and the class of the result

Queries without inputs are computed from the tree, see `engine.constants`. A server decodes a request and calls the same
methods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dyn_service.api import preparation
from dyn_service.api.inputs import checked_option, checked_options
from dyn_service.api.outputs import checked_workers, fill, output_arrays
from dyn_service.api.queries import QUERIES, Array, Computation, Overlay, Query, Row
from dyn_service.api.spec import WITH_WRENCHES, WITHOUT_WRENCHES, Variant
from dyn_service.engine import computations
from dyn_service.engine.altered_trees import AlteredTrees, with_overlay, with_payload
from dyn_service.engine.bound_calls import BoundCall, BoundKernel, Finish, Out, named_input, named_inputs
from dyn_service.engine.calls import Call, OverlayCache, RowCalls
from dyn_service.engine.constants import constant_outputs
from dyn_service.engine.loops.queries import LoopQueries
from dyn_service.engine.refusals import check_answer, refusal
from dyn_service.engine.results import finish_of, list_finish
from dyn_service.engine.robot_model import RobotModel
from dyn_service.engine.wrenches import places
from dyn_service.errors import InvalidArgumentError, ResourceExhaustedError
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.direct import ANY, Arguments
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.signature import Signature, signature_of
from dyn_service.model.description import Description, without_passive

_LOG = logging.getLogger(__name__)

MAX_SIGNATURES = 1024
"""Signatures kept for each robot. Clients may ask for any list of queries, so their number has no other bound."""


class Evaluator:
    """The kernels of a robot, and the calls bound to them.

    direct_calls: by query, the direct form of calls. row_calls: by query, its bound calls.

    Args:
        model: The numbers of the robot.
        loaded: The evaluator of the robot as loaded, whose kernels are used; None: this is the robot as loaded.
    """

    def __init__(self, model: RobotModel, loaded: Evaluator | None = None) -> None:
        self.model = model
        self.loaded = loaded
        self._tree: Evaluator | None = None  # of a robot with closed loops
        self.closed_loops = self._closed_loops() if model.description.loop_joints else None
        self.library: KernelLibrary
        if self._tree is not None:
            self.library = self._tree.library
        else:
            self.library = KernelLibrary(model.tree) if loaded is None else loaded.library
        self.direct_calls: dict[str, Call] = {}
        self.row_calls: dict[str, RowCalls] = {}
        self.overlaid = OverlayCache()
        self._workers = 1
        self._signatures: dict[tuple[str, str, Variant], Signature] = {}

    def _closed_loops(self) -> LoopQueries:
        loaded = self.loaded
        if loaded is None or loaded._tree is None:
            self._tree = Evaluator(self.model.without_loops)
            return LoopQueries(self._tree, self.model.description)
        self._tree = loaded._tree.with_numbers(self.model.numbers, self.model.name)
        return LoopQueries(self._tree, self.model.description, loaded.closed_loops)

    def __reduce__(self) -> tuple[Any, ...]:
        model = self.model
        if self.loaded is not None:
            return _with_numbers, (self.loaded, model.numbers, model.name)
        # With the property that is slow to compute, if it is known.
        slow = {name: model.__dict__[name] for name in ("massless_joint",) if name in model.__dict__}
        # A search among random configurations, which each worker process would repeat.
        loops = {} if self.closed_loops is None else vars(self.closed_loops)
        return _loaded, (model.description, slow, {name: loops[name] for name in ("freedom",) if name in loops})

    def with_numbers(self, altered: AlteredTrees, name: str | None = None) -> Evaluator:
        """Returns the evaluator of this robot with other numbers. name: of the new robot; None: this robot's."""
        return Evaluator(self.model.with_numbers(altered, name), self.loaded or self)

    @cached_property
    def without_passive(self) -> Evaluator:
        """This robot without passive forces; itself if it has none."""
        model = self.model
        if not model.tree.passive.acts:
            return self
        # Kernels of a loaded robot have its numbers as constants, so others are needed.
        if self.loaded is None:
            other = Evaluator(RobotModel.of(without_passive(model.description)))
            if self.closed_loops is not None and other.closed_loops is not None:
                other.closed_loops.freedom = self.closed_loops.freedom
            return other
        # Here the same kernels serve, since passive numbers are inputs of them.
        tree = model.tree.without_passive
        return self.with_numbers(AlteredTrees(tree, model.bodies.with_numbers(tree, ()), None))

    def acting(self, row: Row, method: str, passive: bool) -> Evaluator:
        """Returns this evaluator, or the one without passive forces if `passive` is False and this matters."""
        return self if self._acts(row, method, passive) else self.without_passive

    def _acts(self, row: Row, method: str, passive: bool) -> bool:
        return passive or (isinstance(row, Query) and not row.passive[method] & self.model.tree.passive.acts)

    @property
    def certificates(self) -> Mapping[str, Certificate]:
        """Certificates of the kernels made so far, by kernel."""
        if self.loaded is not None:
            return self.loaded.certificates
        certificates = self.library.certificates
        # Not the property, which would create that robot: without kernels it has no certificates.
        if self.__dict__.get("without_passive", self) is self:
            return certificates
        suffix = " (without passive forces)"
        without_passive = self.without_passive.certificates.items()
        return certificates | {
            f"{name}{suffix}": replace(certificate, kernel=f"{name}{suffix}") for name, certificate in without_passive
        }

    def share(self, evaluators: Iterable[Evaluator]) -> None:
        """Uses the kernels of one of these evaluators if both have changed numbers of the same robot."""
        if self.loaded is None:
            return
        for evaluator in evaluators:
            loaded = evaluator.loaded or evaluator
            # By fingerprint: two loads of one file are different objects with equal kernels.
            if loaded.model.fingerprint == self.loaded.model.fingerprint:
                self.loaded, self.library = loaded, loaded.library
                if self._tree is not None and loaded._tree is not None:
                    self._tree.share([loaded._tree])
                return

    @property
    def workers(self) -> int:
        """See `Robot.workers`."""
        return self._workers

    @workers.setter
    def workers(self, count: int) -> None:
        self._workers = checked_workers(count)
        for query, calls in self.row_calls.items():
            self.direct_calls[query] = calls.with_threads(self._workers)

    # Calls.

    def answer(
        self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...], out: Any = None, workers: Any = None
    ) -> Any:
        """Answers a query with any arguments; see the steps in the docstring of the module.

        Args:
            row: The query, or a list of them.
            required: The required inputs, in the order of the method's parameters.
            optional: The optional inputs and the options, in that order.
            out: See `api.outputs`, as for `workers`.
            workers: The largest number of threads; None: `workers` of this evaluator.

        Raises:
            DynError: An argument is invalid, or the query has no answer for this robot.
        """
        if self.closed_loops is not None:
            threads = self._workers if workers is None else checked_workers(workers)
            return self.closed_loops.answer(row, required, optional, out, threads)
        arrays_out = () if out is None else output_arrays(row, out)
        threads = self._workers if workers is None else checked_workers(workers)
        calls = self.row_calls.get(row.name)
        if calls is not None and (workers is not None or arrays_out):  # else it was tried before, see `Robot._ask`
            result = None
            if not arrays_out:
                result = calls.with_threads(threads)(required, optional)
            elif all(x is None or type(x) is np.ndarray for x in arrays_out):
                result = calls.into(required, optional, arrays_out, threads)
            if result is not None:
                return result
        if row.constant:
            result = row.result(constant_outputs(row, self.model, row.arguments(required, optional)[1]))
            return fill(row, result, arrays_out) if arrays_out else result
        overlay = None if row.overlay is None else optional[row.optional_arguments.index(row.overlay)]
        if overlay is None:
            return self._computed(row, required, optional, arrays_out, threads)
        inputs, options = row.arguments(required, optional)
        evaluator = self._with_overlay_of(row, inputs, checked_options(row, options))
        # The overlay was removed from `inputs`, so its place in the tuple is None.
        rest = tuple(inputs.get(name, options.get(name)) for name in row.optional_arguments)
        result = evaluator._computed(row, required, rest, arrays_out, threads)
        self._calls_of(row)  # the direct form, which finds the overlay in the cache
        return result

    def _computed(
        self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...], out: Out, workers: int
    ) -> Any:
        """Returns the result of a query at states, without an overlay among the arguments; binds the call."""
        wrenches = None if row.wrenches is None else optional[row.optional_arguments.index(row.wrenches)]
        variant = WITHOUT_WRENCHES if wrenches is None else WITH_WRENCHES
        # Without options that can be looked up, such as a wrong type, the call is resolved and its errors reported.
        call = None if (calls := self.row_calls.get(row.name)) is None else calls.bound(optional)
        is_bound = call is not None and variant in call.kernels
        if call is None or not is_bound:
            call = self._resolved(row, optional)
        kernel_out = out if call.in_place and all(x is None or type(x) is np.ndarray for x in out) else ()
        outputs = call.compute(required, optional, kernel_out, workers, self._rotations)
        if not is_bound:
            if variant.wrenches and not call.signatures[variant].empty:
                poses = QUERIES["link_poses"]  # the direct form needs its kernel for wrenches in any frame
                call.library.kernel(self.signature(poses, ""))
            self._bind(row, optional)
        result = outputs if call.finish is None else call.finish(outputs, required)
        # Arrays of subclasses, whose operators may differ, are set by assignment.
        return fill(row, result, out) if out and not kernel_out else result

    def _resolved(self, row: Query, optional: tuple[Any, ...]) -> BoundCall:
        """Returns the call with the options among these optional arguments, without kernels.

        Raises:
            InvalidArgumentError: An option is invalid.
            NotFoundError: An option names a link or joint that the robot does not have.
            FailedPreconditionError: The query has no answer for this robot.
        """
        arguments = dict(zip(row.optional_arguments, optional, strict=True))
        options = checked_options(row, {name: x for name, x in arguments.items() if name in row.options})
        method = row.method(options)
        evaluator = self.acting(row, method, options[row.passive_option]) if row.passive_option else self
        model = evaluator.model
        check_answer(model, row, method)
        selection = model.rows.selection(row, options, model.name)
        world = row.in_world_axes(options)
        defaults = evaluator.defaults_of(row)
        for name in row.by_name:
            if arguments[name] is not None:
                defaults[name] = named_input(row, name, arguments[name], model)
        variants = (WITHOUT_WRENCHES, WITH_WRENCHES) if row.wrenches is not None else (WITHOUT_WRENCHES,)
        signatures = {variant: evaluator.signature(row, method, variant) for variant in variants}
        is_whole = selection is None and len(signatures[WITHOUT_WRENCHES].outputs) == len(row.outputs)
        return BoundCall(
            row=row,
            model=model,
            library=evaluator.library,
            signatures=signatures,
            defaults=defaults,
            checks_states=model.checks_states(row, method),
            finish=self._finish_of(row, selection, world=world, selected=False),
            in_place=is_whole and not world,
            kernels={},
        )

    def _finish_of(self, row: Query, selection: Any, *, world: bool, selected: bool) -> Finish | None:
        """Returns the conversion of a kernel's outputs to the result; see `results.finish_of`."""
        if row.parts:
            return list_finish(row, self.model.rows.labels(row))
        rotations = self._rotations if world else None
        return finish_of(row, self.model.rows, selection, rotations, selected=selected)

    def _bind(self, row: Query, optional: tuple[Any, ...]) -> None:
        """Binds the options among these optional arguments, which are valid, to the kernels in memory.

        Does nothing if the query has no answer for this robot, if M(q) is checked at each state, or if an input has no
        entries: compiled code does neither.
        """
        arguments = dict(zip(row.optional_arguments, optional, strict=True))
        options = {name: x for name, x in arguments.items() if name in row.options}
        method = row.method(options)
        evaluator = self.acting(row, method, options[row.passive_option]) if row.passive_option else self
        model = evaluator.model
        optional = tuple(x if name in row.options or name in row.by_name else None for name, x in arguments.items())
        variants = (WITHOUT_WRENCHES, WITH_WRENCHES) if row.wrenches is not None else (WITHOUT_WRENCHES,)
        loaded = [
            variant
            for variant in variants
            if all(signature in evaluator.library for signature in evaluator._signatures_of(row, method, variant))
        ]
        calls = self._calls_of(row)
        earlier = calls.bound(optional)
        # Bound again if a kernel was loaded since, such as the one with wrenches.
        if not loaded or (earlier is not None and [*earlier.kernels] == loaded):
            return
        if refusal(model, row, method) or model.checks_states(row, method) or evaluator.signature(row, method).padded:
            return
        call = self._resolved(row, optional)
        selection = model.rows.selection(row, options, model.name)
        world = row.in_world_axes(options)
        rows = None if selection is None or world else selection.rows
        kernels, checking, selected = evaluator._bound_kernels(call, method, loaded, optional, rows)
        finish = self._finish_of(row, selection, world=world, selected=selected)
        direct, direct_with_wrenches = (
            kernels[variant].direct if variant in kernels else None for variant in (WITHOUT_WRENCHES, WITH_WRENCHES)
        )
        bound_call = replace(
            call,
            finish=finish,
            in_place=call.in_place or selected,
            kernels=kernels,
            direct=direct,
            direct_with_wrenches=direct_with_wrenches,
        )
        calls.bind(optional, bound_call, checking.get(WITHOUT_WRENCHES), checking.get(WITH_WRENCHES))
        self.direct_calls[row.name] = calls.with_threads(self._workers)

    def _calls_of(self, row: Query) -> RowCalls:
        calls = self.row_calls.get(row.name)
        if calls is None:
            calls = self.row_calls[row.name] = RowCalls(row, named_inputs(row, self.model), self.overlaid)
            self.direct_calls[row.name] = calls.with_threads(self._workers)
        return calls

    def _bound_kernels(
        self,
        call: BoundCall,
        method: str,
        loaded: Sequence[Variant],
        optional: tuple[Any, ...],
        rows: Sequence[int] | None,
    ) -> tuple[dict[Variant, BoundKernel], dict[Variant, Any], bool]:
        """Returns the kernels of a call, its direct calls that compare the options, and whether rows are selected.

        Args:
            call: The call.
            method: The choice of the option that selects the kernel.
            loaded: The variants of the kernel that are loaded.
            optional: The optional arguments of the row with these options.
            rows: The indices of the selected rows; None: all. Kernels compute only these if all of them can.
        """
        row, library = call.row, self.library
        signatures = {variant: self._signatures_of(row, method, variant) for variant in loaded}
        selections = {}
        if rows is not None:
            selections = {variant: library.selected(signatures[variant][0], rows) for variant in loaded}
        # All or none, because `finish` either selects rows or finds them selected.
        selected = bool(selections) and all(selection is not None for selection in selections.values())
        with_options, any_options = self._argument_maps(call, optional)
        kernels, checking = {}, {}
        for variant in loaded:
            signature, *poses = signatures[variant]
            conversion = None
            if poses:
                in_body = places(self.model.tree, self.model.bodies, links=row.links)
                conversion = library.wrench_conversion(poses[0], self.model.link_index, in_body)
            selection = selections[variant] if selected else None
            ufunc = library.kernel(signature) if selection is None else selection[1]
            direct = None
            if conversion is not None or not poses:
                part = None if selection is None else selection[0]
                direct = library.direct_call(signature, any_options, conversion, part)
                checking[variant] = library.direct_call(signature, with_options, conversion, part)
            kernel_signature = signature if selection is None else selection[0].signature
            kernels[variant] = BoundKernel(kernel_signature, ufunc, direct, library.work(signature))
        return kernels, checking, selected

    def _argument_maps(self, call: BoundCall, optional: tuple[Any, ...]) -> tuple[Arguments, Arguments]:
        """Returns how arguments become inputs of a kernel: with these options only, and with any options.

        An input given by name is a one-hot vector that is fixed here; the name itself is compared like an option.
        """
        row, defaults = call.row, call.defaults
        arguments = dict(zip(row.optional_arguments, optional, strict=True))
        fixed = {name: x for name, x in defaults.items() if name in row.by_name or name not in arguments}
        fixed |= self.model.parameters(row)
        accepted = {
            f"{name} by name" if name in row.by_name else name: x if name in row.by_name else defaults.get(name, x)
            for name, x in arguments.items()
        }
        places_of_motions, locked = self.model.locked_inputs(row)
        zero_entries = {row.required[k]: locked for k in places_of_motions}
        any_value = {row.overlay, *row.options, *(f"{name} by name" for name in row.by_name)}
        any_options = {name: ANY if name in any_value else x for name, x in accepted.items()}
        return Arguments(accepted, fixed, zero_entries), Arguments(any_options, fixed, zero_entries)

    def _rotations(self, q: Array) -> Array:
        """Returns R_WL of every link, (..., nl, 3, 3)."""
        poses = QUERIES["link_poses"]
        direct = self.direct_calls.get(poses.name)
        result = None if direct is None else direct((q,), ())
        rotations: Array = (self.answer(poses, (q,), ()) if result is None else result).rotation
        return rotations

    # Overlays.

    def overlaid_by(self, overlay: Overlay, path: str) -> Evaluator:
        """Returns the evaluator of this robot with an overlay, from the cache or made and kept there.

        Args:
            overlay: The overlay.
            path: Its path, for errors.

        Raises:
            DynError: The overlay is invalid.
        """

        def make() -> Evaluator:
            return self.with_numbers(with_overlay(self.model.tree, self.model.bodies, overlay, path))

        # By identity or content, since an overlay is immutable; anything else is refused by `make`.
        evaluator: Evaluator = self.overlaid.get(overlay, make) if isinstance(overlay, Overlay) else make()
        return evaluator

    def _with_overlay_of(
        self, row: Row, inputs: dict[str, Any], options: Mapping[str, Any], path: str = "inputs."
    ) -> Evaluator:
        """Returns the evaluator that answers a call with an overlay, and removes the overlay from the inputs.

        Raises:
            InvalidArgumentError: The overlay contradicts another argument.
        """
        name = row.first("overlay") or ""
        overlay = inputs.pop(name)
        evaluator = self.overlaid_by(overlay, path + name)
        gravity = row.first("gravity")
        if overlay.gravity is not None and gravity is not None and inputs.get(gravity) is not None:
            raise InvalidArgumentError(
                f"{gravity} is given twice, as an argument and in the overlay: omit one", path=f"{path}{name}.gravity"
            )
        if overlay.joints and not options.get(row.passive_option or "", True):
            raise InvalidArgumentError(
                f"the overlay contains passive joint properties, which {row.passive_option}=False switches off",
                path=f"{path}{name}.joints",
            )
        return evaluator

    def for_computation(self, row: Computation, arguments: dict[str, Any]) -> Evaluator:
        """Returns the evaluator that computes: with the overlay, payload and `passive` of the arguments.

        Removes these from the arguments.

        Args:
            row: The row of the table.
            arguments: Inputs and options by their names on the wire, or the method's arguments.

        Raises:
            DynError: An argument is invalid or contradicts another, or there is no answer for this robot.
        """
        check_answer(self.model, row)
        evaluator, passive = self, True
        if row.passive_option is not None:
            passive = checked_option(row.options[row.passive_option], arguments.pop(row.passive_option, True))
        for name in row.of_kind("overlay"):
            overlay = arguments.pop(name, None)
            if overlay is not None:
                # A copy, from which the overlay is removed: the arguments of the computation are without it already.
                inputs = {**arguments, name: overlay}
                evaluator = evaluator._with_overlay_of(row, inputs, {row.passive_option or "": passive}, "")
        for name in row.of_kind("payload"):
            payload = arguments.pop(name, None)
            if payload is not None:
                model = evaluator.model
                evaluator = evaluator.with_numbers(with_payload(model.tree, model.bodies, payload, "payload"))
        evaluator.model.hold_locked(row, arguments)
        return evaluator.acting(row, "", passive)

    # Kernels.

    def signature(self, row: Query, method: str, variant: Variant = WITHOUT_WRENCHES) -> Signature:
        """Returns the signature of a kernel of this robot: of a row, one of its methods, with or without wrenches."""
        variant = self.model.variant(row, variant)
        key = (row.name, method, variant)
        signature = self._signatures.get(key)
        if signature is None:
            if len(self._signatures) >= MAX_SIGNATURES:
                self._signatures.clear()
            signature = self._signatures[key] = signature_of(row, method, self.model.sizes(row), variant)
        return signature

    def _signatures_of(self, row: Query, method: str, variant: Variant) -> tuple[Signature, ...]:
        """Returns the signatures of the kernels of a call: with external wrenches also that of the links' poses."""
        kernel = self.signature(row, method, variant)
        return (kernel, self.signature(QUERIES["link_poses"], "")) if variant.wrenches else (kernel,)

    def defaults_of(self, row: Query) -> dict[str, Array]:
        """Returns the default values of the optional inputs except wrenches, and the numbers of an overlay."""
        optional = row.optional - {row.wrenches, row.overlay}
        defaults = {name: self.model.default_of(row, name) for name in row.inputs if name in optional}
        return defaults | self.model.parameters(row)

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
        if self.closed_loops is not None:
            kernels = self.closed_loops.kernels(row, method, variant)
            in_memory = all(evaluator.has_kernel(*kernel, passive=passive) for evaluator, kernel in kernels)
            return in_memory and self.closed_loops.is_prepared(row)
        model, variant = self.model, self.model.variant(row, variant)
        if row.constant or refusal(model, row, method, numbers=False):
            return True
        if not (variant.overlay or self._acts(row, method, passive)):
            other = self.__dict__.get("without_passive")  # callers of this method have no time to create one
            return other is not None and other.has_kernel(row, method, variant, passive=True)
        signatures = self._signatures_of(row, method, variant)
        is_loaded = all(signature.empty or signature in self.library for signature in signatures)
        return is_loaded or (not variant.overlay and bool(refusal(model, row, method)))

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
        if self.closed_loops is not None:
            kernels = self.closed_loops.kernels(row, method, variant)
            loaded = all(evaluator.load_kernel(*kernel, passive=passive, make=make) for evaluator, kernel in kernels)
            return loaded and self.closed_loops.prepare(row, make=make)
        model, variant = self.model, self.model.variant(row, variant)
        if row.constant or refusal(model, row, method, numbers=False):
            return True
        options: dict[str, Any] = {row.kernel_option: method} if row.kernel_option else {}
        if not variant.overlay and (other := self.acting(row, method, passive)) is not self:
            is_loaded = other.load_kernel(row, method, variant, passive=True, make=make)
            self._bind_options(row, options | {row.passive_option or "": False})
            return is_loaded
        for signature in self._signatures_of(row, method, variant):
            if signature.empty:
                continue
            if make:
                self.library.kernel(signature)
            elif not self.library.load(signature):
                return not variant.overlay and bool(refusal(model, row, method))  # refused without a kernel
        self._bind_options(row, options)
        return True

    def _bind_options(self, row: Query, options: Mapping[str, Any]) -> None:
        """Binds these options and the defaults of the others."""
        names = zip(row.optional_arguments, row.argument_defaults, strict=True)
        self._bind(row, tuple(options.get(name, default) for name, default in names))

    def prepare(
        self, queries: Iterable[str] | None = None, progress: Callable[[str, float], None] | None = None
    ) -> None:
        """See `Robot.prepare`."""
        names = ["control"] if queries is None else [queries] if isinstance(queries, str) else list(queries)
        if self.closed_loops is not None and self._tree is not None:
            chosen = (self.closed_loops.kernels(row, method) for row, method in preparation.chosen(names))
            needed = [kernel for kernels in chosen for kernel in kernels]
            self._tree.prepare(dict.fromkeys(kernel[0].name for _, kernel in needed), progress)
            for evaluator, (row, method, variant) in needed:
                if variant.wrenches:  # the loads of loop joints act as external wrenches
                    evaluator.load_kernel(row, method, variant, passive=True, make=True)
            for row, _ in preparation.chosen(names):
                self.closed_loops.prepare(row, make=True)
            self.prepare_loops()
            computations.load(names)
            return
        kernels = [(row, method, self.signature(row, method)) for row, method in preparation.chosen(names)]
        missing = [
            signature for row, method, signature in kernels if not (signature.empty or refusal(self.model, row, method))
        ]
        with ExitStack() as second_thread:
            for row, method, signature in kernels:
                start_s = time.perf_counter()
                if signature in missing:
                    try:
                        self.library.kernel(signature)
                        self._bind_options(row, {row.kernel_option: method} if row.kernel_option else {})
                    except ResourceExhaustedError as error:
                        if method == next(iter(row.kernels)):
                            raise
                        _LOG.warning("%s: %s", self.model.name, error)
                    if signature == missing[0]:  # the other kernels use its frames and its test states
                        second_thread.enter_context(self.library.making(missing[1:]))
                if progress is not None:
                    progress(signature.name, time.perf_counter() - start_s)
        computations.load(names)
        _ = self.model.massless_joint  # slow to compute, so computed here

    def prepare_loops(self) -> None:
        """Finds what closed loops leave free, if there are any, so that no call computes it."""
        if self.closed_loops is not None:
            with suppress(ResourceExhaustedError):  # a tree too large for a kernel, whose queries are refused with it
                _ = self.closed_loops.freedom


def _loaded(description: Description, slow: Mapping[str, Any], loops: Mapping[str, Any]) -> Evaluator:
    """Returns the evaluator of a robot as loaded. slow, loops: properties of its model and loops that are known."""
    model = RobotModel.of(description)
    model.__dict__.update(slow)
    evaluator = Evaluator(model)
    if loops:
        vars(evaluator.closed_loops).update(loops)
    return evaluator


def _with_numbers(loaded: Evaluator, altered: AlteredTrees, name: str) -> Evaluator:
    return loaded.with_numbers(altered, name)
