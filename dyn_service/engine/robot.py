"""A robot in this process: the table of queries, answered by kernels compiled for this very robot.

    robot = Robot.from_urdf("urdf/panda.urdf")
    tau = robot.inverse_dynamics(q, v, a)          # (..., nv) from (..., nq), (..., nv), (..., nv)

All inputs broadcast over leading axes. A state's answer is the same to the last bit alone or in a batch. NaN in gives
NaN out: finiteness is checked where data enter from outside, on the wire.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api import preparation
from dyn_service.api.inputs import broadcast, checked_options, found, numbers, row_of
from dyn_service.api.prescribed import GivenMotion
from dyn_service.api.queries import (
    DEFAULT_GRAVITY,
    QUERIES,
    Array,
    EffortFunction,
    Integrator,
    Method,
    Payload,
    Query,
    RobotQueries,
    Wrench,
    WrenchFunction,
)
from dyn_service.api.results import RheonomicTrajectory, Trajectory
from dyn_service.engine.payload import carrying, inertial_of
from dyn_service.engine.rows import Rows
from dyn_service.engine.wrenches import link_wrenches, on_bodies, on_links
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.signature import Signature, signature_of
from dyn_service.model.configuration import Configuration
from dyn_service.model.description import Description, RootType, rooted
from dyn_service.model.inertia import combine
from dyn_service.model.tree import Limits, Tree, Weld, weld, welding_notes
from dyn_service.suggestions import did_you_mean
from dyn_service.urdf import loaded, reader
from dyn_service.urdf.places import counted
from dyn_service.urdf.receipt import MassSummary, Receipt, build_receipt

_SINGULAR = 1e-13
"""A joint whose branch inertia is below this share of its rigid one has none: rounding of the subtraction is 1e-15."""


_KEPT_PAYLOADS = 8
"""Robots with a payload that are kept: each holds the kernels that were made for it."""


class Robot(RobotQueries):
    """The dynamics of one robot.

    Args:
        description: The robot as written, from an importer; most callers want `from_urdf`.
    """

    def __init__(self, description: Description) -> None:
        self._description = description
        self._tree = Tree.from_description(description)
        self._weld = weld(self._tree)
        self._rows = Rows(self._tree, self._weld.tree)
        self._library = KernelLibrary(self._tree)
        self._gravity = np.array(DEFAULT_GRAVITY)
        self._link_index = {name: i for i, name in enumerate(self._tree.links)}
        self._signatures: dict[tuple[str, str, bool], Signature] = {}
        self._loaded: dict[tuple[str, float, bytes, bytes], Robot] = {}
        self._loading = threading.Lock()
        for row in QUERIES.values():
            # A subclass that overrides a method means it; without movable joints there is no kernel to go to at once.
            if self.nv and row.inputs and getattr(type(self), row.name) is getattr(RobotQueries, row.name):
                setattr(self, row.name, self._shortcut(row))

    @classmethod
    def from_urdf(cls, source: str | os.PathLike[str] | Any, *, root: RootType = "fixed") -> Robot:
        """The robot a URDF describes.

        Args:
            source: A path, the XML text itself, or a loaded URDF object of urchin, urdfpy or yourdfpy.
            root: How the root link moves in the world: it stands "fixed", or is "floating" or "planar". Then it has a
                joint `root_joint`, first in `joint_names`.

        Raises:
            UrdfError: The description is malformed; names file, line, element and cause.
            InvalidArgumentError: There is no such kind of root.
            NotFoundError: There is no such file.
        """
        read = reader.read if isinstance(source, str | bytes | os.PathLike) else loaded.read
        return cls(rooted(read(source), root))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._description,)

    def __repr__(self) -> str:
        return f"<Robot {self.name!r}: {len(self._tree)} links, {len(self.joint_names)} movable joints>"

    @property
    def name(self) -> str:
        """The robot's name, as its URDF gives it."""
        return self._tree.name

    @property
    def nq(self) -> int:
        """Length of `q`."""
        return self._tree.nq

    @property
    def nv(self) -> int:
        """Length of `v`, `a` and `tau`."""
        return self._tree.nv

    @property
    def configuration(self) -> Configuration:
        """Where the joints' entries stand in q and v, and how positions move: `integrate`, `difference`, `neutral`."""
        return self._tree.configuration

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Movable joints in the order of `q`: depth first, siblings by joint name, as in Pinocchio."""
        return self._tree.movable_joints

    @property
    def all_joint_names(self) -> tuple[str, ...]:
        """Every URDF joint, fixed ones too: the rows of `constraint_forces`."""
        return self._tree.named_joints

    @property
    def link_names(self) -> tuple[str, ...]:
        """Every link, parent before child: the rows of `link_poses`."""
        return self._tree.links

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits; another robot, or this one with any number changed, has others."""
        return self._tree.fingerprint

    @property
    def tree(self) -> Tree:
        """The robot as parent-first arrays, one body per link."""
        return self._tree

    @property
    def bodies(self) -> Weld:
        """The bodies that move against each other, and where each link went."""
        return self._weld

    @property
    def limits(self) -> Limits:
        """Limits of the movable joints, each (nv,); infinite where the URDF gives none."""
        return self._tree.limits

    @property
    def certificates(self) -> Mapping[str, Certificate]:
        """How the kernels made so far did against the tree as given, by kernel; `prepare` makes them."""
        return self._library.certificates

    @property
    def receipt(self) -> Receipt:
        """What the import kept, merged, defaulted, dropped and doubted, and the certificates of the kernels so far."""
        return self._import_receipt.with_certificates(
            {name: certificate.to_dict() for name, certificate in self.certificates.items()},
            [note for certificate in self.certificates.values() for note in certificate.notes()],
        )

    @cached_property
    def _import_receipt(self) -> Receipt:
        before = self._tree.total_inertia()
        still = [i for i, body in enumerate(self._weld.body) if body < 0]
        poses = self._tree.poses_at_zero()
        moving = self._weld.tree
        parts = [self._tree.inertia[i].placed(*poses[i]) for i in still]
        parts += [body.placed(*pose) for body, pose in zip(moving.inertia, moving.poses_at_zero(), strict=True)]
        after = combine(parts)
        return build_receipt(
            self._description,
            before=MassSummary(before.mass, before.com),
            after=MassSummary(after.mass, after.com),
            movable=self.joint_names,
            bodies=len(moving),
            merged=welding_notes(self._tree, self._weld),
            fingerprint=self.fingerprint,
        )

    def describe(self) -> dict[str, Any]:
        """What a client needs to know, as plain values ready for MessagePack or JSON; None is an absent limit."""
        limits = {
            name: [value if math.isfinite(value) else None for value in getattr(self.limits, name).tolist()]
            for name in ("lower", "upper", "velocity", "effort")
        }
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "nq": self.nq,
            "nv": self.nv,
            "joint_names": list(self.joint_names),
            "joint_types": [joint.type for joint in self._tree.configuration.joints],
            "all_joint_names": list(self.all_joint_names),
            "link_names": list(self.link_names),
            "limits": limits,
            "gravity": list(DEFAULT_GRAVITY),
            "certificates": {name: found.to_dict() for name, found in self.certificates.items()},
        }

    def close(self) -> None:
        """Nothing is held open; here so that control code treats local and remote robots alike."""

    def prepare(
        self, queries: Iterable[str] | None = None, progress: Callable[[str, float], None] | None = None
    ) -> None:
        """Makes kernels now, so that no later call waits for a compiler.

        Args:
            queries: Names from the table, and of the purposes `control`, `verify`, `simulate` (see `preparation`); None
                is `control`, all that control loops ask. Each in every method, without external wrenches.
            progress: Called after each kernel with its name and the seconds it took.

        Raises:
            InvalidArgumentError: There is no query and no purpose of that name.
        """
        names = ["control"] if queries is None else [queries] if isinstance(queries, str) else list(queries)
        for row, method in preparation.chosen(names):
            begun = time.perf_counter()
            signature = self.signature(row, method)
            if not signature.empty:
                self._kernel(signature)
            if progress is not None:
                progress(signature.name, time.perf_counter() - begun)
        preparation.load_modules(names)
        _ = self.massless_joint  # it may take the tracer to know

    def verify(self, q: ArrayLike, v: ArrayLike, a: ArrayLike, *, gravity: ArrayLike | None = None) -> dict[str, Array]:
        """How far the formulations are apart at a state: relative residuals by name, (...,) each.

        `dyn_service.reference.verification` lists the names and what each compares. Rounding is 1e-16 to 1e-12.
        """
        from dyn_service.reference.verification import residuals

        return residuals(self, q, v, a, gravity=gravity)

    def simulate(
        self,
        q0: ArrayLike,
        v0: ArrayLike,
        tau: ArrayLike | EffortFunction | None = None,
        *,
        dt: float,
        steps: int,
        method: Method = "articulated",
        integrator: Integrator = "rk4",
        gravity: ArrayLike | None = None,
        wrenches: Wrench | Sequence[Wrench] | WrenchFunction | None = None,
        payload: Payload | None = None,
        every: int = 1,
        p0: ArrayLike | None = None,
        first_step: int = 0,
        progress: Callable[[float], None] | None = None,
    ) -> Trajectory:
        """The motion from `q0`, `v0` under the efforts `tau`: see `RobotQueries.simulate`."""
        from dyn_service.sim.simulate import simulate

        return simulate(
            self if payload is None else self.with_payload(payload),
            q0,
            v0,
            tau,
            dt=dt,
            steps=steps,
            method=method,
            integrator=integrator,
            gravity=gravity,
            wrenches=wrenches,
            every=every,
            p0=p0,
            first_step=first_step,
            progress=progress,
        )

    def with_payload(self, payload: Payload) -> Robot:
        """This robot with one more body, welded to a link; the last few of them are kept with their kernels.

        Its joints are this robot's, in the same order; its links are this robot's and the payload.

        Raises:
            NotFoundError: There is no link of that name.
            InvalidArgumentError: The mass is not positive, or the inertia is none that a body can have.
        """
        inertial = inertial_of(payload)
        key = (payload.link, inertial.mass, inertial.com.tobytes(), inertial.inertia.tobytes())
        with self._loading:
            loaded_robot = self._loaded.pop(key, None) or type(self)(
                carrying(self._description, payload.link, inertial)
            )
            self._loaded[key] = loaded_robot  # the last one used is the last to go
            if len(self._loaded) > _KEPT_PAYLOADS:
                del self._loaded[next(iter(self._loaded))]
        return loaded_robot

    def simulate_rheonomic(
        self,
        prescribed: GivenMotion,
        q0: ArrayLike,
        v0: ArrayLike,
        tau: ArrayLike | EffortFunction | None = None,
        *,
        dt: float,
        steps: int,
        **options: Any,
    ) -> RheonomicTrajectory:
        """The motion while some joints move as given: see `dyn_service.sim.sampled.simulate_rheonomic`."""
        from dyn_service.sim.sampled import simulate_rheonomic

        return simulate_rheonomic(self, prescribed, q0, v0, tau, dt=dt, steps=steps, **options)

    def evaluate(
        self, query: str, inputs: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The outputs of one row of the table, by name; what the methods return, before it is unpacked.

        Raises:
            UnimplementedError: There is no such query.
            InvalidArgumentError: An input or option is missing, unknown, or of the wrong shape, type or value; `path`
                names it.
            NotFoundError: A link or joint of that name does not exist.
            FailedPreconditionError: Forward dynamics has no answer: a massless branch moves.
        """
        row = row_of(query)
        for name in inputs:
            if name not in row.inputs:
                known = f"its inputs are {', '.join(row.inputs)}" if row.inputs else "it has none"
                known += did_you_mean(name, row.inputs)
                raise InvalidArgumentError(f"{query} has no input '{name}'; {known}", path=f"inputs.{name}")
        for name in row.inputs:
            if inputs.get(name) is None and name not in row.optional:
                raise InvalidArgumentError(f"{query} needs the input '{name}'", path=f"inputs.{name}")
        return self._evaluate(row, inputs, options or {})

    def _evaluate(self, row: Query, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = checked_options(row, options)
        if row.constant:
            return self._constant(row, chosen)
        pushed = row.wrenches
        wrenches = None if pushed is None else inputs.get(pushed)
        method = chosen[row.selector] if row.selector else ""
        signature = self.signature(row, method, wrenches=wrenches is not None)
        self._refuse_massless(row, method)
        arguments = {name: self._argument(row, name, inputs.get(name)) for name in row.inputs if name != pushed}
        pose = arguments[row.pose] if row.pose else self._tree.configuration.neutral
        if pushed is not None and wrenches is not None:
            acting = link_wrenches(wrenches, self._link, lambda: self._rotations(pose))
            arguments[pushed] = on_links(acting, self._tree) if row.links else on_bodies(acting, self._weld)
        arrays = self._run(signature, arguments)
        outputs: dict[str, Any] = dict(zip(row.outputs, arrays, strict=True))
        if chosen.get("frame") == "world":
            self._rows.turn_to_world(outputs, row, self._rotations(pose))
        outputs.update(self._rows.labels(row))
        if chosen.get("joints") is not None:
            self._select_joints(outputs, row, chosen["joints"])
        return outputs

    def _constant(self, row: Query, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """What does not depend on a state is asked of the tree itself, once per call."""
        module, _, name = row.kernels[""].partition(".")
        function = getattr(importlib.import_module(f"dyn_service.dynamics.{module}"), name)
        options = {name: value for name, value in chosen.items() if name != "joints"}
        outputs: dict[str, Any] = {**self._rows.labels(row), **function(self._tree, **options)}
        if chosen.get("joints") is not None:
            self._select_joints(outputs, row, chosen["joints"])
        return outputs

    def _run(self, signature: Signature, arguments: Mapping[str, Array]) -> tuple[Array, ...]:
        given = [arguments[operand.name] for operand in signature.inputs]
        for k, operand in enumerate(signature.inputs):
            if (axes := signature.padded.get(operand.name)) is not None:
                given[k] = np.zeros((*given[k].shape[: given[k].ndim - axes], 1))
        leads = {
            operand.name: x.shape[: x.ndim - len(operand.shape)]
            for operand, x in zip(signature.inputs, given, strict=True)
        }
        lead = broadcast(leads)
        if signature.empty:
            return tuple(np.zeros(lead + operand.shape) for operand in signature.outputs)
        result = self._kernel(signature)(*given)
        return result if isinstance(result, tuple) else (result,)

    def _kernel(self, signature: Signature) -> np.ufunc:
        return self._library.kernel(signature)

    def signature(self, row: Query, method: str, *, wrenches: bool = False) -> Signature:
        """Function and operand shapes of one kernel of this robot: a row of the table, a method, wrenches or none."""
        key = (row.name, method, wrenches)
        known = self._signatures.get(key)
        if known is None:
            known = self._signatures[key] = signature_of(row, method, self._sizes(links=row.links), wrenches=wrenches)
        return known

    def _sizes(self, *, links: bool) -> dict[str, int]:
        return self.sizes if links else {**self.sizes, "nb": len(self._weld.tree)}

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions that the shapes in the table speak of, by symbol; `nb` as where bodies are links."""
        return self._rows.sizes

    def _shortcut(self, row: Query) -> Callable[..., Any]:
        """The row's method as a plain function for the common call, without external wrenches and special options.

        A control loop asks for one state at a time; there the table's general path costs more than the kernel. Anything
        the kernel does not take as it is goes the general way, which answers or says what is wrong.
        """
        general = getattr(RobotQueries, row.name).__get__(self)
        method = next(iter(row.kernels))
        required = [name for name in row.inputs if name not in row.optional]
        arguments = [*required, *("default_gravity" for _ in row.of_kind("gravity"))]
        plain = [f"{name} is None" for name in row.optional]
        plain += [f"{option.name} == {option.default!r}" for option in row.options.values()]
        numbers = [name for name in required if row.inputs[name].scalar]
        core = {name: row.inputs[name].dims(self._sizes(links=row.links)) for name in numbers}
        source = f"def {row.name}({row.declared}):\n"
        source += f"    if {' and '.join(plain) or 'True'}:\n"
        source += "".join(f"        if {n}.__class__ is float: {n} = full({core[n]}, {n})\n" for n in numbers)
        called = f"kernel({', '.join(arguments)})"
        answer = called if row.result_type is None else f"named({called})"
        source += f"        try:\n            return {answer}\n"
        source += "        except (TypeError, ValueError):\n            pass\n"
        source += f"    return general({row.passed})\n"
        space: dict[str, Any] = {
            "general": general,
            "default_gravity": self._gravity,
            "full": np.full,
        }
        if row.result_type is not None:
            labels = self._rows.labels(row)
            space["named"] = lambda arrays: row.result({**labels, **dict(zip(row.outputs, arrays, strict=True))})

        def first_call(*given: Any) -> Any:
            self._refuse_massless(row, method)
            space["kernel"] = self._kernel(self.signature(row, method))
            return space["kernel"](*given)

        space["kernel"] = first_call
        exec(compile(source, f"<{row.name} of {self.name}>", "exec"), space)
        shortcut: Callable[..., Any] = space[row.name]
        shortcut.__doc__ = general.__doc__
        return shortcut

    def _argument(self, row: Query, name: str, value: Any) -> Array:
        """An input as an array of doubles, its core shape checked."""
        if value is None:
            if name not in row.optional:
                raise InvalidArgumentError(f"{row.name} needs the input '{name}'", path=f"inputs.{name}")
            return self._gravity
        spec = row.inputs[name]
        core = spec.dims(self._sizes(links=row.links))
        path = f"inputs.{name}"
        array = numbers(value)
        if array is None:
            raise InvalidArgumentError(
                f"{name} must be real numbers of shape (..., {', '.join(map(str, core))}), found {found(value)}",
                path=path,
            )
        if spec.scalar and array.ndim == 0:
            return np.full(core, array[()])
        if array.ndim < len(core) or array.shape[array.ndim - len(core) :] != core:
            of = f" ({counted(len(self.joint_names), 'movable joint')})" if spec.shape in (("nq",), ("nv",)) else ""
            raise InvalidArgumentError(
                f"{name} has shape {array.shape}, expected (..., {', '.join(map(str, core))}){of}", path=path
            )
        return array

    def _refuse_massless(self, row: Query, method: str) -> None:
        if method in row.inverts and self.massless_joint is not None:
            raise FailedPreconditionError(
                f"{row.name} has no answer for robot '{self.name}': what moves with joint '{self.massless_joint}' has "
                "no inertia along it, so no finite effort gives a finite acceleration"
            )

    @cached_property
    def massless_joint(self) -> str | None:
        """The movable joint nearest the leaves whose branch has no inertia along it, in any configuration."""
        moving = self._weld.tree
        if all(body.mass > 0.0 and np.linalg.eigvalsh(body.about_com)[0] > 0.0 for body in moving.inertia):
            return None  # every body's inertia is positive definite, hence every branch's
        # Branch inertias are analytic in q: zero at an arbitrary configuration means zero at all.
        moved = np.random.default_rng(0).uniform(-1.0, 1.0, self.nv)
        return self.singular_joint(self.configuration.integrate(self.configuration.neutral, moved))

    def singular_joint(self, q: ArrayLike) -> str | None:
        """The movable joint nearest the leaves whose branch has no inertia along it at `q`; None: M(q) is regular.

        Args:
            q: (nq,) positions, of a size at which nothing overflows.
        """
        from dyn_service.dynamics.articulated import joint_inertias

        moving = self._weld.tree
        articulated, rigid = joint_inertias(moving, np.asarray(q, dtype=np.float64))
        bare = [
            k for k in range(self.nv) if math.isfinite(rigid[k]) and not abs(articulated[k]) > _SINGULAR * abs(rigid[k])
        ]
        return moving.configuration.velocity_joints[max(bare)] if bare else None

    def _rotations(self, q: Array) -> Array:
        """R_WL of every link, (..., nl, 3, 3)."""
        rotations: Array = self._evaluate(QUERIES["link_poses"], {"q": q}, {})["rotation"]
        return rotations

    def _select_joints(self, outputs: dict[str, Any], row: Query, joints: Sequence[str]) -> None:
        rows = []
        for k, name in enumerate(joints):
            if name not in self.all_joint_names:
                raise NotFoundError(
                    f"robot '{self.name}' has no joint '{name}'; its joints are {', '.join(self.all_joint_names)}"
                    f"{did_you_mean(name, self.all_joint_names)}",
                    path=f"options.joints[{k}]",
                )
            rows.append(self.all_joint_names.index(name))
        for name, spec in row.outputs.items():
            outputs[name] = np.take(outputs[name], rows, axis=-len(spec.shape))
        outputs["joints"] = tuple(joints)

    def _link(self, name: str, path: str) -> int:
        index = self._link_index.get(name) if isinstance(name, str) else None
        if index is None:
            raise NotFoundError(
                f"robot '{self.name}' has no link '{name}'; its links are {', '.join(self.link_names)}"
                f"{did_you_mean(name, self.link_names)}",
                path=path,
            )
        return index
