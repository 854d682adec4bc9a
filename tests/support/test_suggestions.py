"""'Did you mean': every message that says a name does not exist ends with the nearest one that does."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot, Wrench
from dyn_service.api.queries import COMPUTATIONS, QUERIES
from dyn_service.api.results import ConstraintForces
from dyn_service.cli.calling import ask
from dyn_service.control.trajectory import from_wire
from dyn_service.errors import DynError
from dyn_service.graph.nodes.plant.factory import initial_position
from dyn_service.model.configuration import Limits
from dyn_service.service.protocol.inputs import unpack_wrenches
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.messages import Request
from dyn_service.service.server.administration.metrics import Metrics
from dyn_service.service.server.answering.plan import read_inputs, read_options
from dyn_service.service.server.answering.registry import Registry
from dyn_service.service.server.answering.service import Service, compute
from dyn_service.simulation.engines import integrator
from dyn_service.simulation.rheonomic import RheonomicRobot
from dyn_service.simulation.simulate import simulate
from dyn_service.support.arguments import parse_arguments
from dyn_service.support.suggestions import MAX_COMPARED, MAX_LENGTH, MAX_LISTED, closest, did_you_mean, known_instead
from dyn_service.support.validation import suggestion


@pytest.mark.parametrize(
    ("name", "known_names", "nearest"),
    [
        ("intertial", ["inertial", "visual"], "inertial"),
        ("xzy", ["xyz", "rpy"], "xyz"),
        ("Revolute", ["revolute", "prismatic"], "revolute"),
        ("PANDA_HAND", ["panda_hand", "panda_link0"], "panda_hand"),
        ("panda_hand", ["Panda_Hand"], "Panda_Hand"),
        ("elbow", [], None),
        ("nose", ["base_link", "upper_bar"], None),
        # Of two letters, one alike is chance.
        ("qd", ["q", "v"], None),
        (None, ["none"], None),
        (["elbow"], ["elbow"], None),
        ("x" * (MAX_LENGTH + 1), ["x" * MAX_LENGTH], None),
        ("x" * MAX_LENGTH, ["x" * (MAX_LENGTH + 1)], None),
    ],
)
def test_closest(name: object, known_names: list[str], nearest: str | None) -> None:
    assert closest(name, known_names) == nearest
    assert did_you_mean(name, known_names) == ("" if nearest is None else f"; did you mean '{nearest}'?")


def test_what_is_compared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come from strangers; comparing must not cost more than an answer."""
    compared: list[str] = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda _, candidates, **how: compared.extend(candidates) or [])
    assert closest("elbow", [f"link_{i}" for i in range(MAX_COMPARED)] + ["elbo"]) is None
    assert len(compared) == MAX_COMPARED
    # Ten million pairs of characters a second is what difflib was seen to do at worst: a tenth of a second.
    assert MAX_LENGTH**2 * MAX_COMPARED <= 2**20


def test_names_cannot_command_the_terminal() -> None:
    assert did_you_mean("elbow\u009b", ["elbow\u009c"]) == "; did you mean 'elbow\\x9c'?"


PENDULUM = Robot.from_urdf("urdf/double_pendulum.urdf")
Q = np.zeros(2)
STATE: dict[str, Any] = {"q": [0.0, 0.0], "v": [0.0, 0.0]}
CONSTRAINTS = QUERIES["constraint_forces"]
LOADS = ConstraintForces(("joint_1",), np.zeros((1, 6)), np.zeros(1), np.zeros((1, 6)))
LIMITS = Limits(-np.ones(2), np.ones(2), np.ones(2), np.ones(2))


def registry() -> Registry:
    return Registry([PENDULUM], 3, Metrics())


def asked(query: str, values: dict[str, Any]) -> Any:
    """What `dyn call` does, with a server that it does not come to ask."""
    return ask("ipc:///nowhere", query, None, values, 1.0, 0.0, None)


def computed(request: Request) -> Any:
    return compute(registry(), COMPUTATIONS[request.query], request, RequestLimits(), math.inf)


def asked_of_a_server(query: str) -> Any:
    return Service([PENDULUM])._check(Request(1, 1, query), 0, 0, 0.0, None)


# fmt: off
MISSPELT: list[tuple[str, Callable[[], Any], str]] = [
    ("query in process", lambda: PENDULUM.evaluate("inverse_dynamic", {}), "inverse_dynamics"),
    ("input in process", lambda: PENDULUM.evaluate("gravity_forces", {"gravty": Q}), "gravity"),
    ("option in process", lambda: PENDULUM.evaluate("forward_dynamics", {"q": Q, "v": Q, "tau": Q}, {"metod": "x"}),
     "method"),
    ("choice in process", lambda: PENDULUM.forward_dynamics(Q, Q, Q, method="articulate"), "articulated"),
    ("selected joint", lambda: PENDULUM.constraint_forces(Q, Q, Q, joints=["joint1"]), "joint_1"),
    ("joint of a basis", lambda: PENDULUM.constraint_basis("joint1"), "joint_1"),
    ("link of a wrench", lambda: PENDULUM.inverse_dynamics(Q, Q, Q, wrenches=Wrench("uper_bar")), "upper_bar"),
    ("frame of a wrench", lambda: PENDULUM.inverse_dynamics(Q, Q, Q, wrenches=Wrench("upper_bar", frame="lower_baar")),
     "lower_bar"),
    ("joint of a result", lambda: LOADS.component("joint1", "force z"), "joint_1"),
    ("component of a result", lambda: LOADS.component("joint_1", "forcez"), "force z"),
    ("integrator", lambda: simulate(PENDULUM, Q, Q, dt=1e-3, steps=1, integrator="rk45"), "rk4"),
    ("integrator of the plant", lambda: integrator("semi_implicit"), "semi_implicit_euler"),
    ("prescribed joint", lambda: RheonomicRobot(PENDULUM, {"joint1": lambda t: (0.0, 0.0, 0.0)}), "joint_1"),
    ("query of a command", lambda: asked("mass_matrx", {}), "mass_matrix"),
    ("input of a command", lambda: asked("gravity_forces", {"gravty": 0}), "gravity"),
    ("query on a server", lambda: asked_of_a_server("mass_matrx"), "mass_matrix"),
    ("robot on a server", lambda: registry().get("double_pendelum"), "double_pendulum"),
    ("input on a server", lambda: read_inputs(CONSTRAINTS, {"wrenche": []}, None), "wrenches"),
    ("option on a server", lambda: read_options(CONSTRAINTS, {"joint": []}), "joints"),
    ("key of a wrench on the wire", lambda: unpack_wrenches({"links": "a"}, "inputs.wrenches"), "link"),
    ("input of a computation",
     lambda: computed(Request(1, 1, "segment_inverse_dynamics", None, {"omegadot": 0})),
     "omega_dot"),
    ("option of a computation",
     lambda: computed(Request(1, 1, "simulate", "double_pendulum", STATE, {"metod": "x"})),
     "method"),
    ("joint of a plant", lambda: initial_position({"joint1": 0.0}, PENDULUM.configuration, LIMITS), "joint_1"),
    ("trajectory", lambda: from_wire({"kind": "multisine"}), "multi_sine"),
    ("node's option", lambda: parse_arguments(["--ros-args", "--remaps", "a:=b"], default_name="n"), "--remap"),
]
# fmt: on


@pytest.mark.parametrize(("call", "nearest"), [pytest.param(*case[1:], id=case[0]) for case in MISSPELT])
def test_misspelt_names_in_messages(call: Callable[[], Any], nearest: str) -> None:
    with pytest.raises(DynError) as error:
        call()
    message = str(error.value)
    assert message.endswith(f"; did you mean '{nearest}'?")
    assert message.count("did you mean") == 1


def test_files_say_it_in_the_same_words() -> None:
    assert suggestion("grvity", ["gravity", "q"]) == "; did you mean 'gravity'?"
    assert suggestion("colour", ["q"]) == "; known here: q"


def test_lists_of_names_are_short() -> None:
    names = [f"a{k}" for k in range(60)]
    assert (
        known_instead("colour", names, "it has")
        == f"; it has {', '.join(names[:MAX_LISTED])} and {60 - MAX_LISTED} more"
    )
    assert known_instead("colour", names[:MAX_LISTED]) == f"; they are {', '.join(names[:MAX_LISTED])}"
    assert known_instead("colour", []) == "; there are none"
    with pytest.raises(DynError, match=r"no query 'dance'; the queries are .* more$") as error:
        PENDULUM.evaluate("dance", q=Q)
    assert str(error.value).count(", ") < MAX_LISTED
