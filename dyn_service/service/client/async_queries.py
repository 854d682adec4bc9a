"""The methods of `api/queries.py` for asyncio.

Each method is that of the blocking class itself, whose body returns what `_ask` or `_compute` returns: here a
coroutine. So a debugger steps through, and a traceback shows, the source of `api/queries.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from dyn_service.api.lists import call_of
from dyn_service.api.outputs import fill
from dyn_service.api.queries import Array, GaitQueries, Query, RobotQueries
from dyn_service.api.robot_properties import RobotProperties

P = ParamSpec("P")
T = TypeVar("T")


def awaited(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Returns the method itself, with the type that it has in a class whose `_ask` returns a coroutine."""
    return cast("Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]", method)


class AsyncRobotQueries(RobotProperties, ABC):
    """As `RobotQueries`, each method to be awaited."""

    # its body returns what `_answer` or `_filled` returns, a coroutine here
    _ask = RobotQueries._ask

    async def _filled(self, row: Query, answer: Awaitable[Any], arrays: tuple[Array | None, ...]) -> Any:
        return fill(row, await answer, arrays)

    @abstractmethod
    async def _answer(self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...]) -> Any:
        """Answers a row of `QUERIES`, or a list of them, as `RobotQueries._answer`."""

    async def evaluate(self, queries: str | Sequence[str], /, **arguments: Any) -> dict[str, Any]:
        """Returns the results of several queries, by query; see `RobotQueries.evaluate`."""
        row, required, optional = call_of(queries, arguments)
        result = await self._answer(row, required, optional)
        return result if row.parts else {row.name: result}

    inverse_dynamics = awaited(RobotQueries.inverse_dynamics)
    forward_dynamics = awaited(RobotQueries.forward_dynamics)
    mass_matrix = awaited(RobotQueries.mass_matrix)
    bias_forces = awaited(RobotQueries.bias_forces)
    gravity_forces = awaited(RobotQueries.gravity_forces)
    constraint_forces = awaited(RobotQueries.constraint_forces)
    force_torque = awaited(RobotQueries.force_torque)
    imu = awaited(RobotQueries.imu)
    constraint_bases = awaited(RobotQueries.constraint_bases)
    computed_torque = awaited(RobotQueries.computed_torque)
    link_poses = awaited(RobotQueries.link_poses)
    point_motion = awaited(RobotQueries.point_motion)
    operational_space = awaited(RobotQueries.operational_space)
    link_motion = awaited(RobotQueries.link_motion)
    branch_inertias = awaited(RobotQueries.branch_inertias)
    topology = awaited(RobotQueries.topology)
    influence_operators = awaited(RobotQueries.influence_operators)
    newton_euler_blocks = awaited(RobotQueries.newton_euler_blocks)
    mass_matrix_steps = awaited(RobotQueries.mass_matrix_steps)
    passive_forces = awaited(RobotQueries.passive_forces)
    momentum = awaited(RobotQueries.momentum)
    velocity_from_momentum = awaited(RobotQueries.velocity_from_momentum)
    momentum_rate = awaited(RobotQueries.momentum_rate)
    system_momentum = awaited(RobotQueries.system_momentum)
    system_momentum_rate = awaited(RobotQueries.system_momentum_rate)
    energy = awaited(RobotQueries.energy)
    hamiltonian = awaited(RobotQueries.hamiltonian)
    equation_terms = awaited(RobotQueries.equation_terms)
    jacobians = awaited(RobotQueries.jacobians)
    bias_accelerations = awaited(RobotQueries.bias_accelerations)
    body_recursion = awaited(RobotQueries.body_recursion)
    hamiltonian_flow = awaited(RobotQueries.hamiltonian_flow)
    momentum_derivative = awaited(RobotQueries.momentum_derivative)
    integrate = awaited(RobotQueries.integrate)
    coriolis_matrix = awaited(RobotQueries.coriolis_matrix)
    dynamic_parameters = awaited(RobotQueries.dynamic_parameters)
    inverse_dynamics_regressor = awaited(RobotQueries.inverse_dynamics_regressor)
    joint_wrench_regressor = awaited(RobotQueries.joint_wrench_regressor)
    momentum_regressor = awaited(RobotQueries.momentum_regressor)
    energy_regressor = awaited(RobotQueries.energy_regressor)
    difference = awaited(RobotQueries.difference)
    neutral = awaited(RobotQueries.neutral)
    random_configuration = awaited(RobotQueries.random_configuration)
    step = awaited(RobotQueries.step)
    inverse_dynamics_derivatives = awaited(RobotQueries.inverse_dynamics_derivatives)
    forward_dynamics_derivatives = awaited(RobotQueries.forward_dynamics_derivatives)
    joint_wrench_derivatives = awaited(RobotQueries.joint_wrench_derivatives)
    inverse_dynamics_hessian = awaited(RobotQueries.inverse_dynamics_hessian)
    forward_dynamics_hessian = awaited(RobotQueries.forward_dynamics_hessian)
    step_derivatives = awaited(RobotQueries.step_derivatives)
    momentum_derivatives = awaited(RobotQueries.momentum_derivatives)
    energy_derivatives = awaited(RobotQueries.energy_derivatives)
    centroidal_derivatives = awaited(RobotQueries.centroidal_derivatives)
    point_motion_derivatives = awaited(RobotQueries.point_motion_derivatives)
    verify = awaited(RobotQueries.verify)
    simulate = awaited(RobotQueries.simulate)
    contact_dynamics = awaited(RobotQueries.contact_dynamics)
    simulate_rheonomic = awaited(RobotQueries.simulate_rheonomic)
    loop_error = awaited(RobotQueries.loop_error)
    assemble = awaited(RobotQueries.assemble)
    independent_motion = awaited(RobotQueries.independent_motion)
    constraint_force_causes = awaited(RobotQueries.constraint_force_causes)
    ground_reactions = awaited(RobotQueries.ground_reactions)


class AsyncGaitQueries:
    """As `GaitQueries`, each method to be awaited."""

    segment_inverse_dynamics = awaited(GaitQueries.segment_inverse_dynamics)
    segment_matrices = awaited(GaitQueries.segment_matrices)
