"""Never NaN or infinity in an answer: `python -m qa.soak.finite --states 1000000`.

Robots with everything that joints can be and do are asked every row of the table, with every method, with and without
wrenches, overlays and what joints do by themselves, by the way that requests take. States are drawn sane, at right
angles where arms are stretched and axes coincide, and wild, of sizes from 1e-300 to 1e300. Each reply is an answer of
finite numbers, or a refusal that says why. One line for each robot; a status other than zero where a reply was neither.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np

from dyn_service.api.queries import QUERIES, Query
from dyn_service.api.spec import DIRECTIONS
from dyn_service.engine.robot import Robot
from dyn_service.parsing.urdf.reader import read
from dyn_service.service.server.answering.service import Service
from tests.conftest import URDF
from tests.mimics import drawn
from tests.passive import restless
from tests.random_robots import MANY_TYPES, random_urdf

TOGETHER = 256
"""States of a request."""

REFUSALS = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")


def robots() -> Iterator[tuple[str, Robot]]:
    """By what there is about each."""
    yield "fingers that follow", Robot.from_urdf(URDF / "panda.urdf")
    yield "everything at each joint", restless(URDF / "panda.urdf", 1)
    yield "a quadruped that floats", restless(URDF / "solo12.urdf", 2, root="floating")
    yield (
        "half of the joints follow",
        restless(drawn(read(URDF / "ten_body_tree.urdf"), 3, share=0.5), 3, root="planar"),
    )
    types = random_urdf(8, movable=6, types=MANY_TYPES)
    yield "joints of every type", restless(types, 4, root="floating")
    yield "every type, some follow", restless(drawn(read(types), 1, share=0.6), 5, root="floating")


def requests(robot: Robot, rng: np.random.Generator) -> Iterator[tuple[dict[str, Any], int]]:
    """One round: each row in each way, with a number of states."""
    for row in QUERIES.values():
        if not row.constant:
            for method in row.kernels:
                for kind in ("sane", "square", "wild"):
                    yield from _requests_of_row(robot, row, method, kind, rng)


def _requests_of_row(
    robot: Robot, row: Query, method: str, kind: str, rng: np.random.Generator
) -> Iterator[tuple[dict[str, Any], int]]:
    options: dict[str, Any] = {} if row.kernel_option is None else {row.kernel_option: method}
    if row.passive_option is not None:
        options[row.passive_option] = bool(rng.integers(2))
    # One that is refused refuses all that came with it: wild ones come alone.
    for lead in [()] * 8 if kind == "wild" else [(TOGETHER,)]:
        inputs: dict[str, Any] = {}
        for name, spec in row.inputs.items():
            if spec.kind == "wrenches":
                if rng.integers(2):
                    parts = {part: [*rng.normal(size=3) * _size(kind, rng)] for part in ("torque", "force", "point")}
                    inputs[name] = {"link": str(rng.choice(robot.link_names)), **parts}
            elif spec.kind == "link":
                inputs[name] = str(rng.choice(robot.link_names))
            elif spec.kind == "directions":
                inputs[name] = [str(direction) for direction in rng.permutation(DIRECTIONS)[: rng.integers(1, 7)]]
            elif spec.kind == "overlay":
                if not rng.integers(3):
                    inputs[name] = _overlay(robot, kind, rng)
            elif name in row.required or rng.integers(2):
                inputs[name] = _array(_random_input(robot, spec, kind, lead, rng))
        message = {"v": 1, "id": 1, "query": row.name, "robot": robot.name, "inputs": inputs, "options": options}
        yield message, int(np.prod(lead, dtype=int))


def _overlay(robot: Robot, kind: str, rng: np.random.Generator) -> dict[str, Any]:
    """A body on a link, and a joint that does something by itself; no contradiction."""
    overlay: dict[str, Any] = {}
    if rng.integers(2):
        link, size = str(rng.choice(robot.link_names)), _size(kind, rng)
        overlay["payloads"] = {"link": link, "mass": size * float(rng.uniform(0.1, 5.0)), "com": [*rng.normal(size=3)]}
    if rng.integers(2):
        parts = ("damping", "friction", "armature")
        numbers = {part: _size(kind, rng) * float(rng.uniform(0.0, 2.0)) for part in parts}
        overlay["joints"] = {str(rng.choice(robot.joint_names)): numbers}
    return overlay


def _size(kind: str, rng: np.random.Generator) -> float:
    return float(10.0 ** rng.uniform(-300.0, 300.0)) if kind == "wild" and rng.integers(2) else 1.0


def _random_input(robot: Robot, spec: Any, kind: str, lead: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    sizes = robot.sizes
    shape = (*lead, *spec.dims(sizes))
    if spec.kind == "duration":
        return rng.uniform(1e-4, 1e-2, shape)
    if spec.kind != "position":
        return rng.normal(size=shape) * _size(kind, rng)
    configuration = robot.configuration
    if kind == "square":
        q = np.where(configuration.angles, rng.integers(-4, 5, shape) * (np.pi / 2), rng.integers(-1, 2, shape))
    else:
        q = rng.normal(size=shape) * 3.0 * _size(kind, rng)
    with np.errstate(all="ignore"):
        q = configuration.normalised(q)
    return np.where(np.isfinite(q), q, configuration.neutral)


def _array(value: np.ndarray) -> dict[str, Any]:
    return {"dtype": "<f8", "shape": list(value.shape), "data": value.astype("<f8").tobytes()}


def is_finite(value: Any) -> bool:
    """Whether a reply holds finite numbers alone, read as any client reads it."""
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "data"}:
        return bool(np.isfinite(np.frombuffer(value["data"], value["dtype"])).all())
    if isinstance(value, dict | list):
        return all(map(is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or bool(np.isfinite(value))


def survey(robot: Robot, states: int, seed: int = 0) -> tuple[int, int, Counter[str]]:
    """States that were answered, in whole rounds; requests that were refused; what was wrong, how often."""
    service, rng = Service([robot]), np.random.default_rng(seed)
    state_count, refusal_count, wrong = 0, 0, Counter[str]()
    while state_count < states:
        for message, count in requests(robot, rng):
            for reply in _replies(service, message):
                if not reply["ok"]:
                    refusal_count += 1
                    if reply["error"]["code"] not in REFUSALS:
                        wrong[f"{message['query']}: {reply['error']['code']}: {reply['error']['message']}"] += 1
                elif not is_finite(reply["outputs"]):
                    wrong[f"{message['query']}: an answer that is not finite"] += 1
                else:
                    state_count += count
    return state_count, refusal_count, wrong


def _replies(service: Service, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the replies of the slow path and, if it accepts the request, of the fast path."""
    payload = msgpack.packb(message)
    with np.errstate(all="ignore"):  # as in the server's threads
        answers = service.handle(payload, perf_counter_ns()), service.answer_single_state(payload, perf_counter_ns())
    return [msgpack.unpackb(answer) for answer in answers if answer is not None]


def main() -> int:
    """Surveys all robots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=1_000_000, help="over all robots")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    named_robots, total, failed = list(robots()), 0, False
    for name, robot in named_robots:
        start_s = time.monotonic()
        state_count, refusal_count, wrong = survey(robot, options.states // len(named_robots) + 1, options.seed)
        total += state_count
        duration_s = time.monotonic() - start_s
        print(
            f"{name}: {state_count} states answered, {refusal_count} requests refused, {duration_s:.0f} s", flush=True
        )
        for failure, times in wrong.items():
            failed = True
            print(f"  {times} x {failure}", flush=True)
    print(f"{total} states in all, {'NOT ' if failed else ''}every number finite")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
