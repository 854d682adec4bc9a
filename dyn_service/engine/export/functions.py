"""A robot's queries as C functions: object file, shared library, header, self-test with golden numbers, CMake file.

The functions are those of `kernels.export`; names, units, shapes and texts in the header are those of the table.
"""

from __future__ import annotations

import os
import re
import reprlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service import __version__
from dyn_service.api.arrays import found
from dyn_service.api.lists import row_of
from dyn_service.api.queries import COMPUTATIONS, Query
from dyn_service.api.spec import LISTS, PASSIVE_PARTS
from dyn_service.engine.export import loops as loop_export
from dyn_service.engine.export.inputs import NO_EXTRA_INPUTS, TEXTS, ExtraInputs, passive_parts, with_inputs
from dyn_service.engine.refusals import check_answer
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.kernels.certify import drawn_states
from dyn_service.kernels.compiling import compiled
from dyn_service.kernels.export import TARGETS, Function, Target, jacobian_of, object_code, target_of
from dyn_service.kernels.signature import Operand
from dyn_service.model.parameters import COLUMNS, ROWS
from dyn_service.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

STATES = 4
"""States of the self-test."""

TOLERANCE = 1e-9
"""Largest difference in the self-test where the bits differ, as a share of the largest entry of all outputs of the
function at that state: an output that is 0 has rounding errors of the others' size.
"""

_RESERVED = """
    alloca assert complex ctype endian errno fcntl features fenv float inttypes iso646 limits locale malloc math memory
    poll pthread sched setjmp signal stdalign stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib
    stdnoreturn string strings tgmath threads time uchar unistd wchar wctype

    alignas alignof auto bool break case char const constexpr continue default do double else enum extern false for goto
    if inline int long nullptr register restrict return short signed sizeof static static_assert struct switch
    thread_local true typedef typeof typeof_unqual union unsigned void volatile while

    all all_build clean debug depend edit_cache general help install interface link_interface_libraries link_private
    link_public m optimized package package_source private public rebuild_cache run_tests test zero_check
"""
"""Names that break the C or CMake build: headers of C and POSIX, which those in the folder would hide; keywords of C;
targets and keywords of CMake, and the library m. In lower case, since some file systems do not distinguish cases.
"""

_WIDTH = 116


def export(
    robot: Robot,
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
    """Writes queries as C functions; see `Robot.export`."""
    check_flags(friction=friction, force=force)
    prefix = prefix_of(robot, target, name)
    if prefix.lower() in _RESERVED.split():
        if name is not None:
            raise InvalidArgumentError(f"name must not be {name!r}: C or CMake use this name themselves", path="name")
        prefix = f"robot_{prefix}"
    destination, machine = path_of("folder", folder), target_of(target)
    names = [f"{prefix}.o", f"{prefix}.h", f"{prefix}_selftest.c", "CMakeLists.txt"]
    names += [] if acados is None else [f"{prefix}_acados.c"]
    library = destination / f"lib{prefix}{machine.ending}"
    for path in (*(destination / file for file in names), library):
        reject_existing("folder", path, force)
    choices = _checked_queries(queries)
    steps = [] if acados is None else _discrete_dynamics(robot, acados)
    rows = {(row.name, method): (row, method) for row, method in (*choices, *steps)}.values()  # each once
    if not rows:
        raise InvalidArgumentError("name at least one query to export", path="queries")
    inputs = ExtraInputs(links_of(robot, "wrenches", wrenches), links_of(robot, "payload", payload), friction)
    functions = {function_of(robot, row, method, prefix, inputs): (row, method) for row, method in rows}
    _check_inputs_are_read(inputs, functions)
    code, external = object_code([*functions], machine)
    contents = [
        code,
        _header(robot, functions, prefix, machine, target, external, inputs).encode(),
        _self_test(robot, functions, prefix, machine, inputs.wrenches).encode(),
        _CMAKE.replace("@name@", prefix).encode(),
    ]
    if steps:
        function_by_row = {(row.name, method): function for function, (row, method) in functions.items()}
        step, derivatives = (function_by_row[row.name, method] for row, method in steps)
        contents.append(_acados(step, derivatives, prefix, machine).encode())
    # A convenience: the object file and the CMake file suffice where no linker is installed.
    shared_library = _linked(machine, library.name, code, external)
    if shared_library is not None:
        names.append(library.name)
        contents.append(shared_library)
    files = dict(zip(names, contents, strict=True))
    return _write(destination, files, stale=library if shared_library is None else None)


def _checked_queries(queries: Any) -> list[tuple[Query, str]]:
    """Returns the rows and methods of the queries to export."""
    texts = [queries] if isinstance(queries, str) else list(queries) if isinstance(queries, Iterable) else [queries]
    for text in texts:
        if not isinstance(text, str):
            raise InvalidArgumentError(f"queries must be names of queries, found {reprlib.repr(text)}", path="queries")
    return [chosen(text) for text in texts]


def _check_inputs_are_read(extra: ExtraInputs, functions: Iterable[Function]) -> None:
    """Raises InvalidArgumentError for an extra input that no function has."""
    input_names = {operand.name for function in functions for operand in function.signature.inputs}
    unused = [name for name in ("wrenches", "payload", "friction") if getattr(extra, name) and name not in input_names]
    if unused:
        raise InvalidArgumentError(f"none of the queries takes {' or '.join(unused)}: omit it", path=unused[0])


def _write(folder: Path, contents: Mapping[str, bytes], stale: Path | None = None) -> list[Path]:
    """Writes files by name, all or none; returns them. stale: a file of an earlier export, which is removed."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    files: list[Path] = []
    failed_step = "created"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        failed_step = "written"
        # All files are written to another folder and then moved, so that there is never a part of them.
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{Path(next(iter(contents))).stem}.") as other:
            for name, content in contents.items():
                Path(other, name).write_bytes(content)
            if stale is not None:
                stale.unlink(missing_ok=True)
            for name in contents:
                os.replace(Path(other, name), folder / name)
                files.append(folder / name)
    except BaseException as error:  # KeyboardInterrupt, too
        for path in files:
            path.unlink(missing_ok=True)
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        if not isinstance(error, OSError):
            raise
        raise InvalidArgumentError(f"{folder} cannot be {failed_step}: {error.strerror}", path="folder") from None
    return files


def check_flags(**flags: object) -> None:
    """Raises InvalidArgumentError for a flag that is neither True nor False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"{name} must be true or false, found {found(flag)}", path=name)


def path_of(name: str, value: Any) -> Path:
    """Returns a path. name: of the argument."""
    path = Path(value) if isinstance(value, str | os.PathLike) else None
    if path is None or "\0" in str(path):
        raise InvalidArgumentError(f"{name} must be a path, found {found(value)}", path=name)
    return path


def reject_existing(name: str, path: Path, force: bool) -> None:
    """Raises InvalidArgumentError if no file can be written there. name: of the argument."""
    if os.path.lexists(path) and not (os.path.islink(path) or os.path.isfile(path)):
        kind = "a folder" if os.path.isdir(path) else "a device, socket or pipe"
        raise InvalidArgumentError(f"{path} is {kind}, which no file can replace", path=name)
    if not force and os.path.lexists(path):
        raise InvalidArgumentError(f"{path} already exists: set force=True (--force) to overwrite it", path=name)


def prefix_of(robot: Robot, target: str, name: str | None) -> str:
    """Returns the first part of all names, in C.

    Raises:
        InvalidArgumentError: There is no such target, or C has no such names.
    """
    if target not in TARGETS:
        raise InvalidArgumentError(
            f"target must be one of {', '.join(TARGETS)}, found {target!r}{did_you_mean(target, TARGETS)}",
            path="target",
        )
    prefix = re.sub(r"\W", "_", robot.name if name is None else str(name), flags=re.ASCII)
    prefix = prefix if re.match("[A-Za-z]", prefix) else f"robot_{prefix}"
    if name is not None and prefix != name:
        raise InvalidArgumentError(
            f"name must begin with a letter, and have letters, digits and underscores only, found {name!r}", path="name"
        )
    return prefix


def links_of(robot: Robot, name: str, links: Iterable[str]) -> tuple[str, ...]:
    """Returns names of links, checked."""
    if not isinstance(links, Iterable):
        raise InvalidArgumentError(f"{name} must be names of links, found {found(links)}", path=name)
    names = (links,) if isinstance(links, str) else tuple(links)
    for k, link in enumerate(names):
        robot.evaluator.model.index_of(link, f"{name}[{k}]")
        if link in names[:k]:
            raise InvalidArgumentError(f"{name} contains link '{link}' twice", path=f"{name}[{k}]")
    return names


def chosen(query: str) -> tuple[Query, str]:
    """Returns the row and the method of `QUERY` or `QUERY:METHOD`; a list of queries is `QUERY+QUERY`."""
    name, colon, method = query.partition(":")
    if name in COMPUTATIONS:
        raise UnimplementedError(f"{name} is a computation, which is not exported", path="queries")
    row = row_of(name)
    if row.constant:
        raise InvalidArgumentError(f"{name} has the same answer at every state, so it is not exported", path="queries")
    choices = [*row.kernels] if row.kernel_option else []
    if colon and method not in choices:
        choices_text = (
            f"its choices of {row.kernel_option} are {', '.join(choices)}" if choices else "it has no choices"
        )
        hint = did_you_mean(method, choices)
        raise InvalidArgumentError(f"{name} has no '{method}': {choices_text}{hint}", path="queries")
    return row, method or (str(row.options[row.kernel_option].default) if row.kernel_option else "")


def function_of(robot: Robot, row: Query, method: str, prefix: str, extra: ExtraInputs = NO_EXTRA_INPUTS) -> Function:
    """Returns the function of a row. extra: inputs besides those of the plain call.

    Raises:
        FailedPreconditionError: The row has no answer for this robot.
        ResourceExhaustedError: The kernel needs too many operations.
    """
    check_answer(robot.evaluator.model, row, method)
    loops = robot.evaluator.closed_loops
    if loops is not None:
        loop_export.check_exported(robot, row, extra)
    elif robot.evaluator.model.checks_states(row, method):
        raise FailedPreconditionError(
            f"{row.name} of robot '{robot.name}' is not exported: {robot.evaluator.model.impossible_inertia}, so that "
            "each state is checked, which a function cannot do; correct the inertia"
        )
    variant = extra.of(row, method)
    kernel = (
        robot.signature(row, method, variant) if loops is None else loop_export.signature(robot, row, method, variant)
    )
    if kernel.empty:
        raise FailedPreconditionError(f"{row.name} has no results for robot '{robot.name}', so it is not exported")
    is_default = not row.kernel_option or method == row.options[row.kernel_option].default
    query = next((name for name, parts in LISTS.items() if row_of(name) is row), row.name)
    name = "_".join((prefix, query, *(() if is_default else (method,)))).replace("+", "_and_")
    extra_defaults = extra.defaults(robot, row, method)
    signature, entering = with_inputs(robot, extra, kernel, len(row.required), extra_defaults)
    graphs = [loop_export.graph(robot, row, method, kernel)] if loops else robot.evaluator.library.graphs(kernel)
    defaults = robot.evaluator.defaults_of(row) | extra_defaults
    return Function(name, signature, graphs, len(row.required), defaults, len(extra_defaults), entering)


def _linked(target: Target, name: str, code: bytes, external: Sequence[str]) -> bytes | None:
    """Returns the shared library, by the first linker that is installed and can; None if no linker can."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernels.o").write_bytes(code)
        for command, *options in target.linkers:
            arguments = [*options, "-o", name, "kernels.o", *(["-lm"] if external else [])]
            linker = shutil.which(command)
            if linker and subprocess.run([linker, *arguments], cwd=folder, capture_output=True).returncode == 0:
                return Path(folder, name).read_bytes()
    return None


def _comment(lines: Iterable[str]) -> str:
    """Returns lines as a comment of C."""
    text = "\n".join(lines).replace("*/", "* /").replace("/*", "/ *")
    return "/* " + "\n".join(f" * {line}".rstrip() for line in text.splitlines())[3:] + "\n */\n"


def _lists(title: str, names: Sequence[str]) -> list[str]:
    """Returns numbered names in lines."""
    lines = [title]
    for k, name in enumerate(names):
        word = f"{k} {name}" + ("," if k + 1 < len(names) else "")
        if lines[-1] is title or len(lines[-1]) + len(word) >= _WIDTH:
            lines.append(f"   {word}")
        else:
            lines[-1] += f" {word}"
    return lines


def _size(operand: Operand, padded: Any) -> str:
    shape = (0,) if operand.name in padded else operand.shape
    return f"({', '.join(map(str, shape))})"


def _preamble(robot: Robot, machine: Target, target: str, external: Sequence[str]) -> str:
    """Returns the comment at the top of the header: conventions, symbols, and the joints of the robot."""
    configuration = robot.configuration
    gravity = ", ".join(f"{x:g}" for x in robot.gravity)
    followers = zip(robot.tree.moving_joints, robot.tree.mimic, strict=True)
    mimics = [f"{joint} = {mimic.multiplier:g} {mimic.joint} + {mimic.offset:g}" for joint, mimic in followers if mimic]
    if not machine.fuses:
        bits = "Without fused products, as here, the last bits differ, except those of sine and cosine."
    else:
        bits = (
            ""
            if machine.processor == "x86_64"
            else f"On {machine.processor} others are fused, so the last bits differ."
        )
    return _comment(
        [
            f"{robot.name}: dynamics as C functions, by dyn_service {__version__}, for {target}, {machine.triple}.",
            "",
            "Each function computes one state, and returns 0. It allocates nothing, takes no lock and has no state",
            "of its own, so threads may call it at the same time, each with its own workspace.",
            f"External symbols: {', '.join(external) + ', of the C library' if external else 'none'}.",
            f"Bits: those of `Robot` on x86-64 processors with fused products and sums. {bits}".rstrip(),
            "",
            "NAME_eval: arrays by rows, as NumPy's. An optional input that is NULL has its default, an output that",
            "is NULL is not written. w: workspace of NAME_W doubles, without meaning between calls.",
            "NAME and the functions after it: CasADi's external functions, matrices by compressed columns. Their",
            "inputs are those that are not optional, and wrenches, payload, damping and friction, without their",
            "derivatives. The shared library is for casadi.external(NAME, PATH).",
            "",
            "SI units; conventions of dyn_service, see docs/conventions.md. Vectors of links and joints are in",
            "link axes, unless their text names others; spatial vectors have the angular part first. Rotations",
            "R_WL turn link axes into world axes. The world frame is that of the root link in the robot's file.",
            f"Gravity: ({gravity}) m/s^2 by default, in world axes.",
            f"Passive joint forces in the robot's file: {', '.join(robot.description.passive) or 'none'}.",
            *(_lists("Mimic joints, which have no entries in q, v and efforts:", mimics) if mimics else []),
            "",
            *_lists(f"q ({configuration.nq}):", configuration.position_names),
            *_lists(f"v ({configuration.nv}):", configuration.velocity_names),
        ]
    )


def _header(
    robot: Robot,
    functions: Mapping[Function, tuple[Query, str]],
    prefix: str,
    machine: Target,
    target: str,
    external: Sequence[str],
    extra: ExtraInputs,
) -> str:
    guard = f"{prefix.upper()}_H"
    parts = [
        _preamble(robot, machine, target, external),
        f'#ifndef {guard}\n#define {guard}\n\n#ifdef __cplusplus\nextern "C" {{\n#endif\n',
    ]
    for function, (row, method) in functions.items():
        jacobian = jacobian_of(function, [*functions])
        lines = _described(robot, function, row, method, extra)
        if jacobian is not None:
            lines += ["", f"jac_{function.name}: its Jacobian, from {jacobian.name}."]
        parts += [
            _comment(lines),
            f"#define {function.name.upper()}_W {function.workspace(machine)}\n",
            _prototype(function),
            _declared(function.name),
            "" if jacobian is None else _declared(f"jac_{function.name}"),
        ]
    return "\n".join([*parts, "#ifdef __cplusplus\n}\n#endif\n\n#endif\n"])


def _described(robot: Robot, function: Function, row: Query, method: str, extra: ExtraInputs) -> list[str]:
    """Returns the lines of the comment before a function: equation, inputs and outputs with their units."""
    signature, padded = function.signature, function.signature.padded
    lines = [row.summary, f"Equation: {row.equation}", _passive(robot, row, method, extra)]
    lines += [*(() if robot.evaluator.closed_loops is None else loop_export.NOTES), ""]
    for operand in signature.inputs:
        if operand.name in TEXTS:
            unit, meaning = TEXTS[operand.name]
            title = f"optional {operand.name}: {_size(operand, padded)}, {unit}; {meaning}:"
            lines += _lists(title, extra.entries(robot)[operand.name])
            continue
        spec = row.inputs[operand.name]
        optional = "optional " if operand.name in row.optional else ""
        text = ", ".join(filter(None, (_size(operand, padded), spec.unit)))
        form = {"link": "; 1 at the link, 0 elsewhere", "directions": "; 1 at each of them"}.get(operand.kind, "")
        lines.append(f"{optional}{operand.name}: {text}; {spec.text}{form}")
    for operand in signature.outputs:
        spec = row.outputs[operand.name]
        text = "; ".join(filter(None, (", ".join(filter(None, (_size(operand, ()), spec.unit))), spec.text)))
        lines.append(f"-> {_argument(operand, signature.inputs)}: {text}")
    for label, names in robot.evaluator.model.rows.labels(row).items():
        names = robot.all_joint_names if label == "joints" else names  # those of loop joints too
        lines += _lists(f"{label}, {row.labels[label].text}:", names)
    if any(operand.kind == "link" for operand in signature.inputs):
        lines += _lists("links:", robot.link_names)
    return lines


def _passive(robot: Robot, row: Query, method: str, extra: ExtraInputs) -> str:
    """Returns the sentence about the passive joint forces in a function."""
    acts = robot.tree.passive.acts | {*extra.of_joints(row, method)}
    names = [part for part in PASSIVE_PARTS if part in passive_parts(row, method) & acts]
    return f"Passive joint forces that act: {', '.join(names) or 'none'}."


def _argument(operand: Operand, inputs: Sequence[Operand]) -> str:
    """Returns the name of an output's argument: an output may have the name of an input."""
    is_input = any(operand.name == x.name for x in inputs)
    return f"{operand.name}_out" if is_input else operand.name.replace(".", "_")


def _prototype(function: Function) -> str:
    signature = function.signature
    parameters = [f"const double *{operand.name}" for operand in signature.inputs]
    parameters += [f"double *{_argument(operand, signature.inputs)}" for operand in signature.outputs]
    return f"int {function.name}_eval({', '.join([*parameters, 'double *w'])});\n"


def _discrete_dynamics(robot: Robot, integrator: str) -> list[tuple[Query, str]]:
    """Returns the rows of acados' discrete dynamics."""
    if not robot.configuration.flat:  # a planar joint has as many entries of q as of v, but q-dot is not v
        raise FailedPreconditionError(
            f"robot '{robot.name}' has no discrete dynamics for acados: acados differentiates with respect to the "
            f"{robot.nq} entries of q, step_derivatives with respect to its changes along the {robot.nv} entries of v",
            path="acados",
        )
    return [chosen(f"{row}:{integrator}") for row in ("step", "step_derivatives")]


def _acados(step: Function, derivatives: Function, prefix: str, machine: Target) -> str:
    """Returns the C file of acados' discrete dynamics: `acados.c` after the robot's numbers."""
    names = ["q", "v", "tau"]
    starts = accumulate((operand.size for operand in step.named_inputs[3:]), initial=0)
    names += [f"p + {start}" for start, _ in zip(starts, step.named_inputs[3:], strict=False)]
    names += ["NULL"] * (len(step.signature.inputs) - len(names))
    values = {"NV": step.signature.inputs[1].size, "INPUTS": ", ".join(names)}
    values |= {"DISC_FUN": f"{prefix}_disc_fun", "DISC_FUN_JAC": f"{prefix}_disc_fun_jac"}
    for macro, function in (("STEP", step), ("DERIVATIVES", derivatives)):
        values |= {macro: f"{function.name}_eval", f"{macro}_W": function.workspace(machine)}
    macros = "".join(f"#define {name} {value}\n" for name, value in values.items())
    common = resources.files("dyn_service.engine.export").joinpath("acados.c").read_text("utf-8")
    return f"{macros}{_prototype(step)}{_prototype(derivatives)}\n{common}"


def _declared(name: str) -> str:
    """Returns the declarations of CasADi's functions."""
    return f"""int {name}(const double **arg, double **res, long long *iw, double *w, int mem);
long long {name}_n_in(void), {name}_n_out(void);
const char *{name}_name_in(long long i), *{name}_name_out(long long i);
const long long *{name}_sparsity_in(long long i), *{name}_sparsity_out(long long i);
int {name}_work(long long *sz_arg, long long *sz_res, long long *sz_iw, long long *sz_w);
void {name}_incref(void), {name}_decref(void);
"""


def _golden(
    robot: Robot, function: Function, row: tuple[Query, str], links: Sequence[str]
) -> tuple[list[Any], list[Any]]:
    """Returns test states, and this robot's results there: one array per operand, (states, ...).

    links: those on which the function takes wrenches.
    """
    signature = function.signature
    if robot.evaluator.closed_loops is not None:
        closed, expected = loop_export.golden(robot, function, *row, links)
        return [x[:STATES] for x in closed], [x[:STATES] for x in expected]
    with np.errstate(all="ignore"):
        states, _ = drawn_states(signature, robot.tree)
        for operand, array in zip(signature.inputs, states, strict=True):
            if operand.kind == "payload":  # a body whose inertia is possible
                body = np.array([1.0, 0.1, -0.1, 0.2, *np.eye(3)[ROWS, COLUMNS]])
                array[:] = np.abs(array[..., :1]) * body
        inputs = states if function.entering is None else compiled(function.entering)[0](*states)
        answers = robot.evaluator.library.kernel(function.kernel)(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    answers = answers if isinstance(answers, tuple) else (answers,)
    finite = [np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in answers]
    finite_states = np.flatnonzero(np.logical_and.reduce(finite))[:STATES]
    if not len(finite_states):
        raise FailedPreconditionError(f"{function.name} has no finite result at the states of its self-test")
    return [x[finite_states] for x in states], [x[finite_states] for x in answers]


def _self_test(
    robot: Robot,
    functions: Mapping[Function, tuple[Query, str]],
    prefix: str,
    machine: Target,
    links: Sequence[str],
) -> str:
    # Functions of closed loops are not the kernels of `Robot`.
    exact = machine.has_host_bits() and robot.evaluator.closed_loops is None
    parts = [_TEST_HEAD.replace("NAME", prefix).replace("EXACTLY", str(int(exact))).replace("LARGEST", repr(TOLERANCE))]
    calls = []
    for function, row in functions.items():
        signature = function.signature
        inputs, outputs = _golden(robot, function, row, links)
        count = len(inputs[0])
        name, arguments, checks = function.name, [], []
        for operand, array in zip((*signature.inputs, *signature.outputs), (*inputs, *outputs), strict=True):
            is_output = any(operand is output for output in signature.outputs)
            place = f"{name}_{_argument(operand, signature.inputs)}" if is_output else f"{name}_{operand.name}"
            parts.append(_array(place, array.reshape(count, -1)))
            if is_output:
                result_array = f"{place}_found"
                parts.append(f"static double {result_array}[{operand.size}];\n")
                arguments.append(result_array)
                checks.append(f"        compare({result_array}, {place}[k], {operand.size}, &same, &size, &largest);\n")
            else:
                arguments.append(f"{place}[k]")
        parts.append(f"static double {name}_w[{name.upper()}_W];\n")
        call = f"{name}_eval({', '.join([*arguments, f'{name}_w'])});"
        parts.append(
            f"static void test_{name}(long calls)\n{{\n    int same = 1, k;\n    double apart = 0.0;\n"
            f"    for (k = 0; k < {count}; k++) {{\n        double size = 0.0, largest = 0.0;\n"
            f"        {call}\n{''.join(checks)}        apart = share(largest, size, apart);\n    }}\n"
            f'    report("{name}", {count}, same, apart);\n'
            f"    if (calls > 0) {{\n        clock_t begun = clock();\n        long n;\n"
            f"        for (n = 0, k = 0; n < calls; n++, k = (k + 1) % {count})\n            {call}\n"
            f"        time_taken(begun, calls);\n"
            f"    }}\n}}\n"
        )
        calls.append(f"    test_{name}(calls);\n")
    parts.append(_TEST_END.replace("CALLS", "".join(calls)))
    return "\n".join(parts)


def _array(name: str, rows: Any) -> str:
    """Returns an array of doubles in C, to the last bit."""
    lines = [f"static const double {name}[{len(rows)}][{rows.shape[1]}] = {{"]
    lines += ["    {" + ", ".join(float(x).hex() for x in row) + "}," for row in rows]
    return "\n".join([*lines, "};\n"])


_TEST_HEAD = """/* Compares the functions with golden numbers. An argument is a number of calls to time.
 *
 * Where the bits differ, a function is good if no difference is larger than TOLERANCE times the largest entry of all
 * its outputs at that state.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "NAME.h"

#define EXACT EXACTLY /* whether the bits must be the same */
#define TOLERANCE LARGEST /* else the largest difference, as a share of that entry */

static int failures = 0;

/* Adds an output to the largest entry and difference of a state; a difference that is not a number stays. */
static void compare(const double *found, const double *expected, int count, int *same, double *size, double *largest)
{
    int i;
    for (i = 0; i < count; i++) {
        double x = expected[i] < 0.0 ? -expected[i] : expected[i];
        double d = found[i] < expected[i] ? expected[i] - found[i] : found[i] - expected[i];
        *size = x > *size ? x : *size;
        *largest = d > *largest || d != d ? d : *largest;
    }
    if (memcmp(found, expected, sizeof(double) * (size_t)count) != 0)
        *same = 0;
}

static double share(double largest, double size, double apart)
{
    double here = largest == 0.0 ? 0.0 : largest / size;
    return here > apart || here != here ? here : apart;
}

static void report(const char *name, int states, int same, double apart)
{
    int good = EXACT ? same : apart <= TOLERANCE;
    failures += !good;
    printf("%s: %d states, %s: ", name, states, good ? "good" : "WRONG");
    if (same)
        printf("same bits\\n");
    else
        printf("largest difference %.2g of the largest entry\\n", apart);
}

static void time_taken(clock_t begun, long calls)
{
    printf("    %.1f ns per call\\n", 1e9 * (double)(clock() - begun) / CLOCKS_PER_SEC / (double)calls);
}
"""

_TEST_END = """int main(int argc, char **argv)
{
    long calls = argc > 1 ? atol(argv[1]) : 0;
CALLS    return failures != 0;
}
"""

_CMAKE = """# A library of the functions in @name@.h, static or with BUILD_SHARED_LIBS shared, and its self-test.
cmake_minimum_required(VERSION 3.16)
project(@name@ C)

add_library(@name@ ${CMAKE_CURRENT_SOURCE_DIR}/@name@.o)
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/@name@.o PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
set_target_properties(@name@ PROPERTIES LINKER_LANGUAGE C)
target_include_directories(@name@ INTERFACE ${CMAKE_CURRENT_SOURCE_DIR})
if(UNIX)
  target_link_libraries(@name@ INTERFACE m)
endif()

enable_testing()
add_executable(@name@_selftest @name@_selftest.c)
target_link_libraries(@name@_selftest PRIVATE @name@)
add_test(NAME @name@ COMMAND @name@_selftest)
"""
