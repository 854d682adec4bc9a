"""Invalid requests, made from the table: each input and option of each row in each wrong form, random bytes, bad URDFs.

    python -m tests.service.server.bad_inputs        # rewrites bad_inputs.jsonl; review the diff

Each line of the file has a payload with the id, code and path of its refusal. Of rows with many similar cases (those
that kernels answer, and gait) the file has every `SHARE`th. The cases depend only on the table and fixed seeds.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgpack
import numpy as np

from dyn_service import Robot
from dyn_service.api.queries import COMPUTATIONS, QUERIES
from dyn_service.api.spec import BY_NAME, Option, Row, Spec
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.answering.service import Service
from tests.conftest import URDF
from tests.service.conftest import array, request

FILE = Path(__file__).with_name("bad_inputs.jsonl")
ROBOT = "cart_pendulum"  # other tests compile its kernels too
LIMITS = RequestLimits(max_reply_bytes=1 << 20, max_work_s=2.0, max_memory_bytes=64 << 20)
SEGMENTS, FRAMES, STEPS = 2, 3, 4
LINK = "pendulum"
MAPS = ("wrenches", "payload", "overlay", "contacts")


SHARE = 8
"""Every so many of similar cases is in the file."""


class Case(NamedTuple):
    """A case. about: the path that the refusal must name or begin with; None: unknown."""

    name: str
    payload: bytes
    about: str | None = None


class Expected(NamedTuple):
    """The refusal of a payload, as in the file."""

    name: str
    payload: bytes
    id: int | None
    code: str
    path: str | None


def served() -> Service:
    """Returns the service used to make the file."""
    return Service([Robot.from_urdf(URDF / f"{ROBOT}.urdf")], limits=LIMITS, allow_load=True)


def committed() -> list[Expected]:
    """Returns the lines of the file."""
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return [Expected(r["name"], base64.b64decode(r["payload"]), r["id"], r["code"], r["path"]) for r in rows]


def every_case() -> Iterator[Case]:
    """Yields all cases."""
    yield from common_cases()
    yield from rare_cases()


def common_cases() -> Iterator[Case]:
    """Yields the cases of rows that kernels answer, and of gait."""
    for row in (*QUERIES.values(), *(row for row in COMPUTATIONS.values() if not row.robot)):
        yield from of_row(row)


def rare_cases() -> Iterator[Case]:
    """Yields all other cases."""
    for row in COMPUTATIONS.values():
        if row.robot:
            yield from of_row(row)
    yield from of_messages()
    yield from of_administration()
    yield from of_descriptions()
    yield from of_bytes()


# Rows


class Sizes(dict[str, int]):
    """Dimensions of the robot and of other inputs."""


def sizes() -> Sizes:
    robot = Robot.from_urdf(URDF / f"{ROBOT}.urdf")
    robot_sizes = {name: robot.sizes[name] for name in robot.sizes.__struct_fields__}
    return Sizes(robot_sizes, n=SEGMENTS, nf=robot.nv - 1, np=1, **{"2 steps + 1": 2 * STEPS + 1})


_SIZES = sizes()


def good_value(spec: Spec, lead: tuple[int, ...] = ()) -> Any:
    if spec.kind == "wrenches":
        return {"link": LINK, "force": array(np.ones((*lead, 3)))}
    if spec.kind == "payload":
        return {"link": LINK, "mass": 1.0}
    if spec.kind == "overlay":
        return {"payloads": [{"link": LINK, "mass": 1.0}]}
    if spec.kind == "contacts":
        return {"link": LINK, "rigid": True}
    if spec.kind == "link":
        return LINK
    if spec.kind == "directions":
        return ["x"]
    if spec.scalar:
        return 0.5
    value = np.full(lead + spec.dims(_SIZES), 0.5)
    return array(value)


def good(row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns valid inputs and options."""
    names = (name for name, spec in row.inputs.items() if name in row.required or spec.kind == "directions")
    inputs = {name: good_value(row.inputs[name]) for name in names}  # a planar robot moves in few directions
    options: dict[str, Any] = {name: 1e-3 if name == "dt" else STEPS for name in row.options if name in ("dt", "steps")}
    if "joints" in row.options and row.options["joints"].required:
        options["joints"] = [Robot.from_urdf(URDF / f"{ROBOT}.urdf").joint_names[0]]
    return inputs, options


def asked(row: Row, inputs: Mapping[str, Any], options: Mapping[str, Any], /, **fields: Any) -> bytes:
    robot = ROBOT if getattr(row, "robot", True) else ...
    message = {"robot": robot, "inputs": dict(inputs), "options": dict(options) or ..., **fields}
    packed: bytes = msgpack.packb(request(row.name, **message))
    return packed


def of_row(row: Row) -> Iterator[Case]:
    inputs, options = good(row)
    for name, spec in row.inputs.items():
        for fault, value in wrong_values(spec, required=name in row.required):
            values = {key: x for key, x in {**inputs, name: value}.items() if x is not ...}
            path = "inputs" if "leading axes" in fault or name == "mass" else f"inputs.{name}"
            yield Case(f"{row.name} {name}: {fault}", asked(row, values, options), path)
    batched = [name for name, spec in row.inputs.items() if not spec.scalar and spec.kind not in (*MAPS, *BY_NAME)]
    for name in batched[1:]:
        first = batched[0]
        values = {**inputs, first: good_value(row.inputs[first], (2,)), name: good_value(row.inputs[name], (3,))}
        yield Case(f"{row.name} {name}: does not broadcast", asked(row, values, options), "inputs")
        huge = {**inputs, first: good_value(row.inputs[first], (300, 1)), name: good_value(row.inputs[name], (1, 3000))}
        yield Case(f"{row.name} {name}: a huge batch", asked(row, huge, options))
        empty = {
            **inputs,
            first: hollow(row.inputs[first], (0, 1 << 12, 1)),
            name: hollow(row.inputs[name], (0, 1, 1 << 12)),
        }
        yield Case(f"{row.name} {name}: a huge batch of nothing", asked(row, empty, options))
    for name, option in row.options.items():
        for fault, value in wrong_choices(option):
            values = {key: x for key, x in {**options, name: value}.items() if x is not ...}
            yield Case(f"{row.name} {name}: {fault}", asked(row, inputs, values), f"options.{name}")
    yield Case(f"{row.name}: an unknown input", asked(row, {**inputs, "foo": 1.0}, options), "inputs.foo")
    yield Case(f"{row.name}: an unknown option", asked(row, inputs, {**options, "foo": 1}), "options.foo")
    if getattr(row, "robot", True):
        yield Case(f"{row.name}: another model", asked(row, inputs, options, model="0" * 32), "model")
        yield Case(f"{row.name}: another robot", asked(row, inputs, options, robot="r2d2"), "robot")
    for fault in ("inputs", "options"):
        yield Case(f"{row.name}: {fault} as a list", asked(row, inputs, options, **{fault: [1]}), fault)


def hollow(spec: Spec, lead: tuple[int, ...]) -> dict[str, Any]:
    return {"dtype": "<f8", "shape": [*lead, *spec.dims(_SIZES)], "data": b""}


def wrong_values(spec: Spec, *, required: bool) -> Iterator[tuple[str, Any]]:
    """Yields invalid values of an input."""
    if required:
        yield "left out", ...
        yield "nil", None
    yield "a text", "zero"
    yield "a truth value", True
    yield "binary data", b"12345678"
    if spec.kind == "wrenches":
        yield from wrong_wrenches()
        return
    if spec.kind == "payload":
        yield from wrong_payloads()
        return
    if spec.kind == "overlay":
        yield from wrong_overlays()
        return
    if spec.kind == "contacts":
        yield from wrong_contacts()
        return
    if spec.kind == "link":
        yield from wrong_links()
        return
    if spec.kind == "directions":
        yield from wrong_directions()
        return
    shape = spec.dims(_SIZES)
    yield "a map of nothing", {}
    yield "no data", {"dtype": "<f8", "shape": [1]}
    yield "a dtype that is invalid", {"dtype": "|O", "shape": [1], "data": bytes(8)}
    yield "big-endian", {"dtype": ">f8", "shape": [1], "data": bytes(8)}
    yield "a shape that is a number", {"dtype": "<f8", "shape": 1, "data": bytes(8)}
    yield "a negative length", {"dtype": "<f8", "shape": [-1], "data": b""}
    yield "too few bytes", {"dtype": "<f8", "shape": list(shape), "data": bytes(7)}
    yield "a shape beyond all memory", {"dtype": "<f8", "shape": [1 << 40, 1 << 40], "data": b""}
    yield "no entries, and beyond all memory", {"dtype": "<f8", "shape": [0, 1 << 40, *shape], "data": b""}
    yield "17 dimensions", {"dtype": "<f8", "shape": [1] * 17, "data": bytes(8)}
    yield "lists that are not rectangular", [[0.5, 0.5], [0.5]]
    yield "a list of texts", ["a", "b"]
    yield "NaN", array(np.full(shape, np.nan))
    yield "infinity", array(np.full(shape, -np.inf))
    yield "a number that is not finite", float("inf")
    if shape and not (spec.scalar and shape == (1,)):
        yield "one entry too many", array(np.full((*shape[:-1], shape[-1] + 1), 0.5))
        yield "an empty list", []
        yield "an empty last axis", {"dtype": "<f8", "shape": [2, 0], "data": b""}
    if shape and not spec.scalar:
        yield "no axes", 0.5


def wrong_links() -> Iterator[tuple[str, Any]]:
    yield "a map", {"link": LINK}
    yield "a list with a number", [LINK, 5]
    yield "a list with nil", [LINK, None]
    yield "lists of unequal lengths", [[LINK, LINK], [LINK]]
    yield "a name and a list", [LINK, [LINK]]
    yield "a link that is not there", [LINK, f"{LINK}9"]
    yield "an array", array(np.zeros(3))


def wrong_directions() -> Iterator[tuple[str, Any]]:
    yield "an empty list", []
    yield "a direction that is invalid", ["x", "w"]
    yield "a number", 3
    yield "a list with a number", ["x", 1]
    yield "a list of lists", [["x"]]
    yield "an array", array(np.ones(6))


def wrong_wrenches() -> Iterator[tuple[str, Any]]:
    wrench = {"link": LINK, "force": [1.0, 2.0, 3.0]}
    yield "a wrench without link", {"force": [1.0, 2.0, 3.0]}
    yield "a link that is no text", {**wrench, "link": 5}
    yield "a link that is not there", {**wrench, "link": f"{LINK}9"}
    yield "a frame that is not there", {**wrench, "frame": f"{LINK}9"}
    yield "a frame that is no text", {**wrench, "frame": [1]}
    yield "a misspelt torque", {**wrench, "troque": [1.0, 2.0, 3.0]}
    yield "two numbers", {**wrench, "force": [1.0, 2.0]}
    yield "a number for a vector", {**wrench, "torque": 1.0}
    yield "a point that is NaN", {**wrench, "point": array([np.nan, 0.0, 0.0])}
    yield "a list with a number", [wrench, 5]
    yield "leading axes that differ", {**wrench, "force": array(np.ones((2, 3))), "torque": array(np.ones((3, 3)))}
    yield (
        "leading axes of two wrenches that differ",
        [
            {**wrench, "force": array(np.ones((2, STEPS, 3)))},
            {**wrench, "force": array(np.ones((3, STEPS, 3)))},
        ],
    )
    yield "too many", [wrench] * (LIMITS.max_wrenches + 1)
    yield "an empty vector", {**wrench, "force": []}


def wrong_payloads() -> Iterator[tuple[str, Any]]:
    payload = {"link": LINK, "mass": 1.0}
    yield "no mass", {"link": LINK}
    yield "no link", {"mass": 1.0}
    yield "a link that is not there", {**payload, "link": f"{LINK}9"}
    yield "a negative mass", {**payload, "mass": -1.0}
    yield "a mass that is NaN", {**payload, "mass": float("nan")}
    yield "a mass that is a text", {**payload, "mass": "1"}
    yield "a mass that is a map", {**payload, "mass": {"kg": 1.0}}
    yield "a centre of two numbers", {**payload, "com": [0.0, 1.0]}
    yield "an inertia of three numbers", {**payload, "inertia": [1.0, 1.0, 1.0]}
    yield (
        "an inertia that is not symmetric",
        {**payload, "inertia": [[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]},
    )
    yield "a negative moment", {**payload, "inertia": [[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]}
    yield "an inertia that is infinite", {**payload, "inertia": array(np.full((3, 3), np.inf))}
    yield "a misspelt inertia", {**payload, "inertai": [1.0]}
    yield "a list", [payload]


def wrong_overlays() -> Iterator[tuple[str, Any]]:
    joint = Robot.from_urdf(URDF / f"{ROBOT}.urdf").joint_names[0]
    yield "a misspelt part", {"payload": []}
    yield "a list", [{}]
    yield "payloads that are a number", {"payloads": 1.0}
    for fault, value in wrong_payloads():
        if fault != "a list":
            yield f"a payload: {fault}", {"payloads": [value]}
    yield "links in a list", {"links": [LINK]}
    yield "a link that is not there", {"links": {f"{LINK}9": {"mass": 1.0}}}
    yield "a link that is a number", {"links": {1: {"mass": 1.0}}}
    yield "a link's number", {"links": {LINK: 1.0}}
    yield "a link's misspelt mass", {"links": {LINK: {"mas": 1.0}}}
    yield "a link's mass of nothing", {"links": {LINK: {"mass": [1.0, 0.0]}}}
    yield "a link's mass that is NaN", {"links": {LINK: {"mass": float("nan")}}}
    yield "a link's centre of two numbers", {"links": {LINK: {"mass": 1.0, "com": [0.0, 1.0]}}}
    yield "a link's impossible inertia", {"links": {LINK: {"mass": 1.0, "inertia": np.diag([1.0, 1.0, 3.0]).tolist()}}}
    yield (
        "masses whose leading axes do not broadcast",
        {"payloads": [{"link": LINK, "mass": [1.0, 2.0]}, {"link": LINK, "mass": [1.0, 2.0, 3.0]}]},
    )
    yield "a joint that is not there", {"joints": {"elbow9": {"damping": 1.0}}}
    yield "a joint's negative damping", {"joints": {joint: {"damping": -1.0}}}
    yield "a joint's width of nothing", {"joints": {joint: {"friction_width": 0.0}}}
    yield "a joint's damping as a text", {"joints": {joint: {"damping": "1"}}}
    yield "a joint that is locked and damped", {"joints": {joint: {"damping": 1.0}}, "locked": [joint]}
    yield "a locked joint that is not there", {"locked": ["elbow9"]}
    yield "a locked joint that is a number", {"locked": [1]}
    yield "locked as a text", {"locked": joint}
    yield "gravity of two numbers", {"gravity": [0.0, 1.0]}
    yield "gravity that is infinite", {"gravity": array(np.full(3, np.inf))}


def wrong_contacts() -> Iterator[tuple[str, Any]]:
    contact = {"link": LINK}
    yield "a contact without link", {"radius": 0.1}
    yield "a link that is no text", {"link": 5}
    yield "a link that is not there", {"link": f"{LINK}9"}
    yield "a misspelt friction", {**contact, "fricton": 0.5}
    yield "two numbers", {**contact, "point": [1.0, 2.0]}
    yield "an empty vector", {**contact, "point": []}
    yield "a point that is NaN", {**contact, "point": array([np.nan, 0.0, 0.0])}
    yield "a plane that is NaN", {**contact, "plane": array([np.nan, 0.0, 0.0])}
    yield "a plane with leading axes", {**contact, "plane": array(np.ones((2, 3)))}
    yield "leading axes that differ", {**contact, "point": array(np.ones((2, 3))), "normal": array(np.ones((3, 3)))}
    yield "leading axes of two contacts that differ", [{**contact, "point": array(np.ones((k, 3)))} for k in (2, 3)]
    yield "a normal of no length", {**contact, "normal": [0.0, 0.0, 0.0]}
    yield "a normal that is a number", {**contact, "normal": 1.0}
    yield "a friction that pushes", {**contact, "friction": -0.5}
    yield "a friction that is NaN", {**contact, "friction": float("nan")}
    yield "a friction that is infinite", {**contact, "friction": float("inf")}
    yield "a friction that is a text", {**contact, "friction": "ice"}
    yield "a friction that is a list", {**contact, "friction": [0.5]}
    yield "a stiffness of nothing", {**contact, "stiffness": 0.0}
    yield "a stiffness that is a text", {**contact, "stiffness": "1"}
    yield "a stiffness that is a list", {**contact, "stiffness": [1.0]}
    yield "a width that is infinite", {**contact, "width": float("inf")}
    yield "a radius that is a truth value", {**contact, "radius": True}
    yield "rigid as a number", {**contact, "rigid": 1}
    yield "a list with a number", [contact, 5]
    yield "too many", [contact] * (LIMITS.max_contacts + 1)


def wrong_choices(option: Option) -> Iterator[tuple[str, Any]]:
    """Yields invalid values of an option."""
    if option.required:
        yield "left out", ...
        yield "nil", None
    yield "a map", {"a": 1}
    yield "binary data", b"x"
    if option.type == "choice":
        yield "a choice that is invalid", "banana"
        yield "nothing", ""
        yield "a number", 3
        yield "a list", [option.choices[0]]
    elif option.type == "flag":
        yield "a text", "true"
        yield "a number", 1
        yield "a list", [True]
    elif option.type == "names":
        yield "a text", "elbow"
        yield "a number", 3
        yield "a list with a number", ["elbow", 3]
        yield "names that are not there", ["elbow9"]
        yield "lists of lists", [["elbow"]]
    else:
        yield "a text", "3"
        yield "a truth value", True
        yield "a list", [3]
        if option.type == "whole":
            yield "a fraction", 1.5
            yield "less than nothing", -1
        else:
            yield "NaN", float("nan")
            yield "infinity", float("inf")
        if option.name in ("dt", "every"):
            yield "nothing", 0
        if option.name == "dt":
            yield "backwards", -1e-3
        if option.name == "steps":
            yield "too many", LIMITS.max_steps + 1
            yield "beyond all", 2**63


# Messages


def of_messages() -> Iterator[Case]:
    base = request("gravity_forces", ROBOT, inputs={"q": array([0.0] * 2)})
    odd = {
        "nil": None,
        "a truth value": True,
        "a negative number": -7,
        "a fraction": 1000.5,  # ms, a deadline that is met
        "a text": "x",
        "binary data": b"x",
        "a list": [1],
        "a map": {"a": 1},
        "a large number": 2**64 - 1,
        "not a number": float("nan"),
        "a time": msgpack.Timestamp(1),
    }
    for key in ("v", "id", "query", "robot", "inputs", "options", "model", "deadline_ms", "compile_wait_ms"):
        for fault, value in odd.items():
            for order in ("first", "last"):
                rest = {name: x for name, x in base.items() if name != key}
                message = {key: value, **rest} if order == "first" else {**rest, key: value}
                yield Case(f"{key} is {fault}, {order}", msgpack.packb(message), key if fault != "a time" else None)
    for fault, value in odd.items():
        yield Case(f"the message is {fault}", msgpack.packb(value))


def of_administration() -> Iterator[Case]:
    for query in ("load_robot", "unload_robot", "describe_robot"):
        for fault, inputs in (("nothing", ...), ("a list", [1]), ("a text", "x"), ("nil", None), ("a number", 5)):
            message = {"v": 1, "id": 7, "query": query, "inputs": inputs}
            yield Case(f"{query} inputs: {fault}", msgpack.packb({k: x for k, x in message.items() if x is not ...}))
        for fault, robot in (("another", "r2d2"), ("a number", 5), ("nothing", ""), ("long", "x" * 500)):
            yield Case(f"{query} robot: {fault}", msgpack.packb({"v": 1, "id": 7, "query": query, "robot": robot}))
    for fault, urdf in (
        ("binary", b"<robot/>"),
        ("a number", 5),
        ("a list", ["<robot/>"]),
        ("blank", "  \n"),
        ("a path", "/etc/passwd"),
    ):
        yield Case(f"load_robot urdf: {fault}", loading(urdf), "inputs.urdf")
    text = "<robot name='a'><link name='b'/></robot>"
    for fault, root in (("another", "flying"), ("a number", 5), ("a list", ["fixed"]), ("a map", {})):
        yield Case(f"load_robot root: {fault}", loading(text, {"root": root}), "options.root")


def loading(urdf: Any, options: Any = ...) -> bytes:
    message = {"v": 1, "id": 7, "query": "load_robot", "inputs": {"urdf": urdf}, "options": options}
    payload: bytes = msgpack.packb({key: x for key, x in message.items() if x is not ...})
    return payload


def of_descriptions() -> Iterator[Case]:
    whole = (URDF / "scara.urdf").read_text()
    wrong = {
        "no robot": "<html/>",
        "not closed": "<robot name='a'>",
        "two roots": "<robot name='a'/><robot name='b'/>",
        "no name": "<robot><link name='b'/></robot>",
        "no links": "<robot name='a'/>",
        "two root links": "<robot name='a'><link name='b'/><link name='c'/></robot>",
        "the same link twice": "<robot name='a'><link name='b'/><link name='b'/></robot>",
        "a document type": "<!DOCTYPE robot [<!ENTITY a 'b'>]><robot name='a'><link name='&a;'/></robot>",
        "an entity": "<robot name='a'><link name='&a;'/></robot>",
        "another format": "<sdf version='1.6'/>",
        "nested too deep": "<robot name='a'>" + "<x>" * 70 + "</x>" * 70 + "</robot>",
        "too many attributes": "<robot name='a' " + " ".join(f"a{k}='1'" for k in range(70)) + "/>",
        "a lone ampersand": "<robot name='a & b'><link name='b'/></robot>",
        "a NUL": "<robot name='a\0'><link name='b'/></robot>",
    }
    for fault, text in wrong.items():
        yield Case(f"urdf: {fault}", loading(text))
    # Tokens of a whole file, one at a time, replaced by invalid ones.
    for word, other in (
        ('type="revolute"', 'type="wobbly"'),
        ('type="revolute"', ""),
        ("<parent", "<parrot"),
        ("<child", "<chilled"),
        ("<mass value=", "<mass worth="),
        ('<mass value="', '<mass value="-'),
        ('<mass value="', '<mass value="nan'),
        ('<mass value="', '<mass value="1_'),
        ('xyz="', 'xyz="1 2 3 4 '),
        ('rpy="', 'rpy="a '),
        ('ixx="', 'ixx="1e999'),
        ("</link>", ""),
        ("</robot>", ""),
        ("<joint name=", "<joint title="),
        ("<link name=", "<link title="),
        ('link="', 'link="no_'),
    ):
        if word in whole:
            yield Case(f"urdf: {word} is {other or 'gone'}", loading(whole.replace(word, other, 1)))
    noise = random.Random(3)
    for number in range(20):
        end = noise.randrange(1, len(whole) - 10)
        yield Case(f"urdf: cut short {number}", loading(whole[:end]))


def of_bytes() -> Iterator[Case]:
    """Yields a request with bytes removed, changed and repeated."""
    base = msgpack.packb(request("gravity_forces", ROBOT, inputs={"q": array([0.5] * 2)}))
    for end in range(0, len(base), 3):
        yield Case(f"cut off after {end} bytes", base[:end])
    noise = random.Random(1)
    for number in range(150):
        damaged = bytearray(base)
        for _ in range(noise.randrange(1, 4)):
            index = noise.randrange(len(damaged))
            kind = noise.randrange(3)
            if kind == 0:
                damaged[index] = noise.randrange(256)
            elif kind == 1:
                del damaged[index]
            else:
                damaged[index:index] = damaged[index : index + 4]
        yield Case(f"damaged {number}", bytes(damaged))
    for number in range(40):
        yield Case(f"noise {number}", noise.randbytes(noise.randrange(1, 60)))
    heads = {"array32": b"\xdd", "map32": b"\xdf", "str32": b"\xdb", "bin32": b"\xc6", "ext32": b"\xc9"}
    for fault, head in heads.items():
        for size in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"):
            yield Case(f"{fault} announces {size.hex()}", b"\x82\xa2id\x07\xa1x" + head + size)
    for depth in (70, 500, 1100, 3000):
        nested = b"\x91" * depth + b"\x01"
        inputs = b"\x81\xa1q" + nested
        yield Case(
            f"inputs nested {depth} deep",
            b"\x85"
            + b"".join(msgpack.packb(k) for k in ("v", 1, "query", "gravity_forces", "robot", ROBOT, "inputs"))
            + inputs
            + b"\xa2id\x07",
        )


def main() -> None:
    service = served()
    lines = []
    for case in (*islice(common_cases(), 0, None, SHARE), *rare_cases()):
        reply = msgpack.unpackb(service.handle(case.payload, perf_counter_ns()))
        if reply["ok"]:
            print(f"answered: {case.name}")
            continue
        error = reply["error"]
        if len(case.payload) < 10_000:
            line = {"name": case.name, "payload": base64.b64encode(case.payload).decode()}
            lines.append(line | {"id": reply["id"], "code": error["code"], "path": error.get("path")})
    FILE.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{len(lines)} bad inputs")


if __name__ == "__main__":
    main()
