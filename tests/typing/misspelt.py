"""What mypy --strict refuses. Each `ignore` is an error of its own where nothing is refused (warn_unused_ignores)."""

from __future__ import annotations

from dyn_service import AsyncRemoteRobot, Client, RemoteRobot, Robot
from dyn_service.api.queries import RobotQueries
from dyn_service.api.results import Trajectory


def any_robot(robot: RobotQueries, local: Robot, remote: RemoteRobot, q: list[float]) -> Trajectory:
    """A misspelt query, input, option and choice of one, wherever the robot is."""
    local.inverse_dynamic(q, q, q)  # type: ignore[attr-defined]
    remote.inverse_dynamic(q, q, q)  # type: ignore[attr-defined]
    local.inverse_dynamics(q, q, q, gravty=q)  # type: ignore[call-arg]
    remote.inverse_dynamics(q, q, q, gravty=q)  # type: ignore[call-arg]
    local.forward_dynamics(q, q, q, method="articulate")  # type: ignore[arg-type]
    remote.forward_dynamics(q, q, q, method="articulate")  # type: ignore[arg-type]
    robot.simulate(q, q, dt=1e-3, step=5)  # type: ignore[call-arg]
    robot.simulate(q, q, dt=1e-3, steps=5, integrator="rk5")  # type: ignore[arg-type]
    robot.simulate_rheonomic({}, q, q, dt=1e-3, steps=5, evry=2)  # type: ignore[call-arg]
    robot.verify(q, q)  # type: ignore[call-arg]
    wrong: str = local.energy(q, q).total  # type: ignore[assignment]
    del wrong
    return remote.simulate(q, q, dt=1e-3, steps=5)


async def awaited(robot: AsyncRemoteRobot, q: list[float]) -> Trajectory:
    """The same, awaited."""
    await robot.inverse_dynamic(q, q, q)  # type: ignore[attr-defined]
    await robot.inverse_dynamics(q, q, q, gravty=q)  # type: ignore[call-arg]
    await robot.forward_dynamics(q, q, q, method="articulate")  # type: ignore[arg-type]
    await robot.simulate(q, q, dt=1e-3, step=5)  # type: ignore[call-arg]
    return await robot.simulate(q, q, dt=1e-3, steps=5)


def gait(client: Client, q: list[float]) -> None:
    """Segments, which no robot is needed for."""
    client.segment_matrices(mass=q, inertias=q)  # type: ignore[call-arg]
