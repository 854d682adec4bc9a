"""Limits and contacts over a socket: the same motion and account, in parts, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from time import perf_counter_ns, thread_time
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import Client, Contact, Robot, Server, Wrench
from dyn_service.api.inputs import checked_options
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.api.results import Trajectory
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.service.protocol.inputs import pack, unpack
from dyn_service.service.server.answering.bounds import predict_cost
from dyn_service.service.server.answering.service import Service
from dyn_service.simulation import parts
from tests.conftest import URDF
from tests.service.conftest import array, request

FEET = [Contact(f"{leg}_foot", radius=0.016, stiffness=4e4) for leg in ("FL", "FR", "HL", "HR")]
LIMITS = {"position_limits": True, "effort_limits": True, "velocity_limits": True}


@pytest.fixture(scope="module")
def solo() -> Robot:
    return Robot.from_urdf(URDF / "solo12.urdf", root="floating")


@pytest.fixture(scope="module")
def client(solo: Robot) -> Iterator[Client]:
    with (
        Server([solo], endpoints=["tcp://127.0.0.1:0"]) as server,
        Client(server.endpoints[0], timeout_s=240.0) as client,
    ):
        yield client


def standing(solo: Robot, *lead: int) -> tuple[np.ndarray, np.ndarray]:
    q = np.concatenate([[0, 0, 0.235, 0, 0, 0, 1.0], np.tile([0.0, 0.8, -1.6], 4)])
    return np.broadcast_to(q, (*lead, 19)).copy(), np.full((*lead, 18), 0.1)


def stand(t: float, q: np.ndarray, v: np.ndarray) -> np.ndarray:
    tau = np.zeros(v.shape)
    tau[..., 6:] = 8.0 * (np.tile([0.0, 0.8, -1.6], 4) - q[..., 7:]) - 0.25 * v[..., 6:]
    return tau


MOTIONS: dict[str, dict[str, Any]] = {
    "stick_slip in parts": {"steps": 90, "every": 5, "integrator": "stick_slip", "contacts": FEET, **LIMITS},
    "records beyond a part": {"steps": 90, "every": 45, "integrator": "stick_slip", "contacts": FEET, **LIMITS},
    "rk4, stiff on its own": {"steps": 30, "contacts": FEET[0], "stop_time": 0.02, "stop_damping": 3.0},
    "asked at each step": {
        "steps": 12,
        "every": 3,
        "tau": stand,
        "integrator": "stick_slip",
        "contacts": FEET,
        **LIMITS,
    },
    "rigid, pushed": {
        "steps": 20,
        "contacts": [Contact("FL_foot", rigid=True, plane=(0.1, 0.2, 0.01), normal=(0.0, 0.1, 1.0)), FEET[3]],
        "wrenches": Wrench("base_link", force=(1.0, 2.0, 3.0)),
    },
    "limits alone": {"steps": 20, "every": 10, "tau": np.full(18, 5.0), "effort_limits": True},
}


@pytest.mark.parametrize("lead", [(), (2,)], ids=str)
@pytest.mark.parametrize("name", MOTIONS)
def test_a_motion_over_a_socket_is_the_one_here(
    solo: Robot, client: Client, name: str, lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of up to 40 steps for one state: 90 are three requests, for two states five."""
    monkeypatch.setattr(parts, "STICK_SLIP_MOVES", 40 * solo.nv)
    if lead and name.startswith("records"):
        pytest.skip("the same as for one state")
    local = solo.simulate(*standing(solo, *lead), dt=1e-3, **MOTIONS[name])
    remote = client.robot("solo12").simulate(*standing(solo, *lead), dt=1e-3, **MOTIONS[name])
    for field in fields(Trajectory):
        local_field, remote_field = getattr(local, field.name), getattr(remote, field.name)
        if local_field is None:
            assert remote_field is None
        elif field.name in ("t", "work", "dissipated"):  # sums of two parts round once more
            np.testing.assert_allclose(remote_field, local_field, rtol=1e-12, atol=1e-15)
        else:
            np.testing.assert_array_equal(remote_field, local_field, err_msg=field.name)


def test_held_points_over_a_socket(solo: Robot, client: Client) -> None:
    q, v = standing(solo, 3)
    options = {"settle": 0.05, "gravity": (0.0, 1.0, -9.0), "wrenches": Wrench("base_link", force=(1.0, 2.0, 3.0))}
    local = solo.contact_dynamics(q, v, np.ones(18), FEET, **options)  # type: ignore[arg-type]
    remote = client.robot("solo12").contact_dynamics(q, v, np.ones(18), FEET, **options)  # type: ignore[arg-type]
    for name in ("a", "forces", "rank", "violation"):
        np.testing.assert_array_equal(getattr(remote, name), getattr(local, name))
    assert local.forces.shape == (3, 4, 3)
    assert np.all(local.rank == 12)


def test_a_contact_comes_back_as_it_went() -> None:
    contacts = [
        Contact("a"),
        Contact("b", (1.0, 2.0, 3.0), 0.1, (4.0, 5.0, 6.0), (0.0, 1.0, 0.0), 0.3, 1e4, 2.0, 0.01, rigid=True),
        Contact("c", np.ones((2, 3)), np.array(0.5), friction=np.float64(0.3), stiffness=np.float32(0.5), damping=1),  # type: ignore[arg-type]
    ]
    packed = pack("contacts", contacts, "inputs.contacts")
    assert packed[0] == {"link": "a"}  # defaults are not sent
    back = unpack("contacts", msgpack.unpackb(msgpack.packb([_plain(entry) for entry in packed])), "inputs.contacts")
    for contact, copy in zip(contacts, back, strict=True):
        for field in fields(Contact):
            assert np.array_equal(getattr(contact, field.name), getattr(copy, field.name)), field.name


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {"dtype": x.dtype, "shape": list(x.shape), "data": bytes(x.data)} if hasattr(x, "dtype") else x
        for name, x in entry.items()
    }


@pytest.mark.parametrize(
    ("options", "kind", "path"),
    [
        ({"contacts": Contact("foot")}, NotFoundError, "inputs.contacts[0].link"),
        ({"contacts": [FEET[0], Contact("FL_foot", friction=-1.0)]}, InvalidArgumentError, "contacts[1].friction"),
        ({"contacts": 3.0}, InvalidArgumentError, "contacts"),
        ({"position_limits": 1}, InvalidArgumentError, "position_limits"),
        ({"effort_limits": True, "integrator": "adaptive"}, InvalidArgumentError, "effort_limits"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(
    solo: Robot, client: Client, options: dict[str, Any], kind: type[Exception], path: str
) -> None:
    with pytest.raises(kind) as excinfo:
        client.robot("solo12").simulate(*standing(solo), dt=1e-3, steps=3, **options)
    assert excinfo.value.path == path  # type: ignore[attr-defined]


def test_of_no_steps_there_are_no_contacts(solo: Robot) -> None:
    """Nothing is left out in silence."""
    service = Service([solo])
    q, v = standing(solo)
    for contacts in ({"contacts": [{"link": "FL_foot"}]}, {}):
        inputs = {"q": array(q), "v": array(v), **contacts}
        options = {"dt": 1e-3, "steps": 0, **({} if contacts else {"position_limits": True})}
        message = request("simulate", "solo12", inputs=inputs, options=options)
        error = msgpack.unpackb(service.handle(msgpack.packb(message), perf_counter_ns()))["error"]
        assert (error["code"], error["path"]) == ("INVALID_ARGUMENT", "options.steps")


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip"])
@pytest.mark.parametrize("states", [1, 30])
@pytest.mark.parametrize("contacts", [1, 16])
def test_predicted_cost_is_actual_cost(solo: Robot, integrator: str, states: int, contacts: int) -> None:
    """The estimated time is right within a factor, as of other rows; the estimated memory suffices."""
    service, row = Service([solo]), COMPUTATIONS["simulate"]
    q, v = standing(solo, states)
    touching = [{"link": FEET[k % 4].link, "radius": 0.016, "rigid": k == 1} for k in range(contacts)]
    inputs: dict[str, Any] = {"q": array(q), "v": array(v), "contacts": touching}
    options = {"dt": 1e-3, "steps": 10, "integrator": integrator, **LIMITS}
    read = {name: unpack(row.inputs[name].kind, value, name) for name, value in inputs.items()}
    cost = predict_cost(row, solo.sizes, read, checked_options(row, options))
    payload = msgpack.packb(request("simulate", "solo12", inputs=inputs, options=options))
    durations_s = []
    for _ in range(3):
        began = thread_time()
        assert msgpack.unpackb(service.handle(payload, perf_counter_ns()))["ok"]
        durations_s.append(thread_time() - began)
    assert cost.work_s / 20 < min(durations_s) < 10 * cost.work_s
    assert cost.contacts == contacts
