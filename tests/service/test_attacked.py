"""What an attack of 21 November found: each of these fails until it is mended."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq

from dyn_service import Client, Robot, Wrench
from dyn_service.client.aio import AsyncClient
from dyn_service.conventions import from_ros
from dyn_service.errors import InvalidArgumentError
from dyn_service.server.app import Server

URDF = Path(__file__).parents[2] / "urdf"


@pytest.mark.parametrize("form", ["gravity", "wrenches"])
def test_rheonomic_takes_a_batch_of_loads_alone(form: str) -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    link = robot.link_names[-1]
    acting = {"gravity": np.ones((2, 3))} if form == "gravity" else {"wrenches": Wrench(link, force=np.ones((2, 3)))}
    still = {robot.joint_names[0]: np.zeros((4, 3))}
    motion = robot.simulate_rheonomic(still, np.zeros(5), np.zeros(5), dt=0.01, steps=3, **acting)  # type: ignore[arg-type]
    assert motion.q.shape == (2, 4, 6)


@pytest.mark.parametrize("given", [{"dt": np.float64(0.01), "steps": 3}, {"dt": 0.01, "steps": np.int64(3)}], ids=str)
def test_remote_rheonomic_takes_numbers_of_numpy(given: dict[str, float]) -> None:
    robot = Robot.from_urdf(URDF / "ur5e.urdf")
    still = {robot.joint_names[0]: np.zeros((4, 3))}
    with (
        Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server,
        Client(server.endpoints[0], timeout_s=20) as client,
    ):
        remote = client.robot(robot.name)
        assert remote.simulate_rheonomic(still, np.zeros(5), np.zeros(5), **given).q.shape == (4, 6)  # type: ignore[arg-type]


def test_a_listener_that_raises_does_not_deafen_the_client() -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        for k in range(2):
            if not router.poll(3000):
                return
            peer, request = router.recv_multipart()
            head = {"v": 1, "id": msgpack.unpackb(request)["id"]}
            notice = {"state": "compiling", "text": "x", "elapsed_ms": 1.0, "again_ms": 100.0}
            if not k:
                router.send_multipart([peer, msgpack.packb({**head, "notice": notice})])
            router.send_multipart([peer, msgpack.packb({**head, "ok": True, "outputs": {"status": "ok"}})])

    def told(text: str) -> None:
        raise RuntimeError(text)

    async def ask() -> dict[str, object]:
        async with AsyncClient(f"tcp://127.0.0.1:{port}", timeout_s=0.5, on_wait=told) as client:
            await asyncio.gather(client.health(), return_exceptions=True)
            return await client.health()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        assert asyncio.run(ask()) == {"status": "ok"}
    finally:
        thread.join()
        context.destroy(linger=0)


def test_messages_of_ros_as_arrays() -> None:
    at = Robot.from_urdf(URDF / "ur5e.urdf").configuration
    back = from_ros(at, {"name": list(at.names), "position": np.arange(6.0), "velocity": np.zeros(6)})
    np.testing.assert_array_equal(back.q, np.arange(6.0))
    with pytest.raises(InvalidArgumentError):
        from_ros(at, {"name": list(at.names), "position": [0.1, 0.2]})


@pytest.mark.parametrize("timeout_s", [1e7, 1e300])
def test_long_timeouts_are_taken_or_refused_at_once(timeout_s: float) -> None:
    robot = (
        Robot.from_urdf(URDF / "pendulum.urdf")
        if (URDF / "pendulum.urdf").exists()
        else Robot.from_urdf(URDF / "ur5e.urdf")
    )
    with Server([robot], endpoints=["tcp://127.0.0.1:0"]) as server:
        try:
            client = Client(server.endpoints[0], timeout_s=timeout_s)
        except InvalidArgumentError:
            return
        with client:
            assert client.health()["status"] == "ok"
