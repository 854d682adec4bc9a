"""Time per state of this project and of its peers: the same robots, the same states, one core.

    python benchmarks/peers.py [--quick] [--json FILE] [--page docs/peers.md]

Each peer's results are compared with this project's before it is timed. Calls of all peers alternate in rounds; a
figure is the median over the rounds, the spread their quartiles. A peer that is not installed, or does not accept a
robot, is listed with the reason. Peers: `pip install pin mujoco drake dynibo`; Pinocchio's C++ also needs `g++`, and
one to two minutes for its compilation, which --quick omits. On JAX and PyTorch, some gigabytes: `pip install jax
mujoco-mjx frax adam-robotics torch`; MJX compiles for a minute or two for each query and number of states.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, ClassVar
from xml.etree import ElementTree

# NumPy reads it when it is imported: every peer has one core.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from dyn_service import QUERIES as ROWS
from dyn_service import Robot, __version__

ROOT = Path(__file__).parents[1]
ROBOTS = ("ur5e", "panda", "ten_body_tree", "solo12", "upper_body")
CHAINS = (4, 16, 64, 256, 1024)
QUERIES = ("inverse_dynamics", "forward_dynamics", "mass_matrix")
BATCHES = (1, 64, 4096, 1_000_000)
GRAVITY = 9.81
MAX_DIFFERENCE = 1e-8
"""Largest difference relative to the largest entry: rounding in double precision, where masses differ by 1e3."""
PLOTTED_ROBOT = "panda"
LIMITS = ("limit: operations", "limit: memory")
FEW_ROBOTS, FEW_BATCHES = ("ur5e", PLOTTED_ROBOT), (1, 64)
"""Those of peers with `Peer.limited`."""
MAX_NUMBERS = 40_000_000
"""In a result: 320 MB, and as much for each of the inputs and each peer."""
LONGEST_CALL_S = 1.0
"""A peer is not timed with a batch for which one call would take longer."""

Array = np.ndarray
Call = Callable[[], Any]


class Peer(ABC):
    """A library with one robot. To add a peer: a subclass, in `PEERS`."""

    name: ClassVar[str]
    package: ClassVar[str]
    queries: ClassVar[tuple[str, ...]] = QUERIES
    gravity: ClassVar[float] = GRAVITY
    limited: ClassVar[bool] = False
    """Whether to measure few robots and batches, because each takes seconds to compile or to compute."""

    @abstractmethod
    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        """Loads a robot of revolute and prismatic joints; `joints` is the order of the entries of its arrays."""

    order: Any = slice(None)
    """Index of each joint's entry in the peer's own vectors."""

    def in_peer_order(self, array: Array) -> Array:
        """Returns an array (states, joints) in the peer's order."""
        reordered = np.empty_like(array)
        reordered[:, self.order] = array
        return reordered

    @abstractmethod
    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        """Returns a function without arguments that answers a query for all states; x: accelerations or efforts."""

    def result(self, answer: Any) -> Array:
        """Returns an answer as an array in the order of `joints`."""
        return answer[:, self.order] if answer.ndim == 2 else answer[:, self.order][:, :, self.order]


class DynService(Peer):
    """This project."""

    name, package = "dyn_service", "dyn_service"

    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        self.robot = Robot.from_text(urdf)

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        ask = getattr(self.robot, query)
        if query == "mass_matrix":
            return lambda: ask(q)
        return lambda: ask(q, v, x)

    def expected(self, query: str, gravity: float, q: Array, v: Array, x: Array) -> Array:
        """Returns the answer with another gravity, for libraries in which it is fixed."""
        if query == "mass_matrix":
            return self.robot.mass_matrix(q)
        return getattr(self.robot, query)(q, v, x, gravity=np.array([0.0, 0.0, -gravity]))

    def operations(self, query: str) -> int:
        """Returns the number of arithmetic operations for one state."""
        from dyn_service.kernels.frames import cheapest_frames
        from dyn_service.kernels.graph import trace

        return trace(
            cheapest_frames(self.robot.tree), self.robot.signature(ROWS[query], next(iter(ROWS[query].kernels)))
        ).operations


class Pinocchio(Peer):
    """Its Python bindings, in a loop over the states."""

    name, package = "Pinocchio, Python", "pin"
    most_joints = 256

    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        import pinocchio

        self.pin = pinocchio
        if len(joints) > self.most_joints:
            raise MemoryError("its Data has tensors of nv^3 numbers, 8.5 GB for 512 joints")
        self.model = pinocchio.buildModelFromXML(urdf)
        self.model.gravity.linear = np.array([0.0, 0.0, -GRAVITY])
        self.data = self.model.createData()
        self.order = [self.model.idx_vs[self.model.getJointId(name)] for name in joints]

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        q, v, x = (self.in_peer_order(a) for a in (q, v, x))
        pin, model, data = self.pin, self.model, self.data
        if query == "mass_matrix":
            return lambda: np.array([pin.crba(model, data, q_k) for q_k in q])
        ask = pin.rnea if query == "inverse_dynamics" else pin.aba
        return lambda: np.array([ask(model, data, *state) for state in zip(q, v, x, strict=True)])

    def result(self, answer: Any) -> Array:
        if answer.ndim == 3:
            answer = np.triu(answer) + np.swapaxes(np.triu(answer, 1), 1, 2)
        return super().result(answer)


class PinocchioParallel(Pinocchio):
    """Its calls for batches, with one thread."""

    name, package, queries = "Pinocchio, InParallel", "pin", QUERIES[:2]

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        pool = self.pin.ModelPool(self.model, 1)
        ask = self.pin.rneaInParallel if query == "inverse_dynamics" else self.pin.abaInParallel
        inputs = [np.asfortranarray(self.in_peer_order(a).T) for a in (q, v, x)]
        return lambda: ask(1, pool, *inputs)

    def result(self, answer: Any) -> Array:
        return super().result(np.asarray(answer).T.reshape(-1, self.model.nv))


class PinocchioCpp(Pinocchio):
    """Its C++, compiled for this processor: a loop over the states without Python."""

    name, package = "Pinocchio, C++", "pin"
    _library: ClassVar[ctypes.CDLL | None] = None

    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        super().__init__(urdf, joints)
        self.load()

    def load(self) -> None:
        """Gives the model to the C++ library, which is compiled once."""
        self.library = PinocchioCpp._library = PinocchioCpp._library or self.compiled()
        self.library.load.restype = ctypes.c_void_p
        with tempfile.NamedTemporaryFile() as file:  # the wheel has no headers of the URDF parser
            self.model.saveToBinary(file.name)
            self.handle = ctypes.c_void_p(self.library.load(file.name.encode()))

    def compiled(self) -> ctypes.CDLL:
        if shutil.which("g++") is None:
            raise ImportError("g++ is not installed")
        import casadi

        prefix = Path(self.pin.__file__).parents[4]
        eigen = Path(casadi.__file__).parent / "include" / "eigen3"
        folder = Path(tempfile.mkdtemp(prefix="peers-"))
        command = ["g++", "-O3", "-march=native", "-DNDEBUG", "-std=c++17", "-shared", "-fPIC"]
        command += ["-DBOOST_MPL_LIMIT_LIST_SIZE=30", "-DBOOST_MPL_CFG_NO_PREPROCESSED_HEADERS"]  # as its CMake files
        command += ["-DBOOST_FUSION_INVOKE_MAX_ARITY=10"]
        command += [str(Path(__file__).with_suffix(".cpp")), "-o", str(folder / "peers.so")]
        command += [f"-I{prefix}/include", f"-I{eigen}", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"]
        done = subprocess.run(
            [*command, "-lpinocchio_default", "-lboost_serialization"], capture_output=True, text=True
        )
        if done.returncode:
            shutil.rmtree(folder)
            fault = next((line for line in done.stderr.splitlines() if "error" in line), "unknown")
            raise ImportError(f"g++ fails: {fault}")
        library = ctypes.CDLL(str(folder / "peers.so"))
        shutil.rmtree(folder)
        return library

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        arrays = [np.ascontiguousarray(self.in_peer_order(a)) for a in (q, v, x)]
        n = q.shape[1]
        out = np.empty((len(q), n, n) if query == "mass_matrix" else q.shape)
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*arrays, out)]  # which keep the arrays
        index, states = ctypes.c_int(QUERIES.index(query)), ctypes.c_long(len(q))

        def run() -> Array:
            self.library.run(self.handle, index, states, *pointers)
            return out

        return run


class MuJoCo(Peer):
    """`mj_inverse` and `mj_forward` in a loop over the states, constraints and damping off."""

    name, package = "MuJoCo, Python", "mujoco"

    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        import mujoco

        if len(joints) > 512:
            raise ValueError("its compiler refuses some chains of 1,024 joints, or takes minutes")
        self.mujoco = mujoco
        settings = '<mujoco><compiler discardvisual="true" balanceinertia="false" fusestatic="false"/></mujoco>'
        self.model = model = mujoco.MjModel.from_xml_string(urdf.replace("</robot>", settings + "</robot>"))
        model.opt.gravity = (0.0, 0.0, -GRAVITY)
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
        self.data = mujoco.MjData(model)
        self.order = [model.joint(name).dofadr[0] for name in joints]

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        mujoco, model, data = self.mujoco, self.model, self.data
        inputs = [self.in_peer_order(a) for a in (q, v, x)]
        out = np.empty((len(q), model.nv, model.nv) if query == "mass_matrix" else q.shape)

        def run() -> Array:
            for k, (qk, vk, xk) in enumerate(zip(*inputs, strict=True)):
                data.qpos[:], data.qvel[:] = qk, vk
                if query == "inverse_dynamics":
                    data.qacc[:] = xk
                    mujoco.mj_inverse(model, data)
                    out[k] = data.qfrc_inverse
                elif query == "forward_dynamics":
                    data.qfrc_applied[:] = xk
                    mujoco.mj_forward(model, data)
                    out[k] = data.qacc
                else:
                    mujoco.mj_kinematics(model, data)
                    mujoco.mj_comPos(model, data)
                    mujoco.mj_crb(model, data)
                    mujoco.mj_fullM(model, data, out[k])
            return out

        return run


class Drake(Peer):
    """`MultibodyPlant` in a loop over the states."""

    name, package = "Drake, Python", "drake"

    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        from pydrake.multibody.parsing import Parser
        from pydrake.multibody.plant import MultibodyPlant
        from pydrake.multibody.tree import MultibodyForces

        plant = self.plant = MultibodyPlant(0.0)
        Parser(plant).AddModelsFromString(urdf, "urdf")
        root = re.search(r'<link\s+name="([^"]+)"', urdf)
        assert root is not None
        plant.WeldFrames(plant.world_frame(), plant.GetFrameByName(root[1]))
        plant.mutable_gravity_field().set_gravity_vector(np.array([0.0, 0.0, -GRAVITY]))
        plant.Finalize()
        self.context = plant.CreateDefaultContext()
        self.forces = MultibodyForces(plant)
        self.order = [plant.GetJointByName(name).velocity_start() for name in joints]

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        plant, context, forces = self.plant, self.context, self.forces
        inputs = [self.in_peer_order(a) for a in (q, v, x)]
        out = np.empty((len(q), q.shape[1], q.shape[1]) if query == "mass_matrix" else q.shape)
        port = plant.get_applied_generalized_force_input_port()

        def run() -> Array:
            for k, (qk, vk, xk) in enumerate(zip(*inputs, strict=True)):
                plant.SetPositions(context, qk)
                plant.SetVelocities(context, vk)
                if query == "inverse_dynamics":
                    plant.CalcForceElementsContribution(context, forces)
                    out[k] = plant.CalcInverseDynamics(context, xk, forces)
                elif query == "forward_dynamics":
                    port.FixValue(context, xk)
                    out[k] = plant.EvalTimeDerivatives(context).CopyToVector()[len(qk) :]
                else:
                    out[k] = plant.CalcMassMatrix(context)
            return out

        return run


class Dynibo(Peer):
    """Its Rust code, in a loop over the states."""

    name, package, gravity = "dynibo", "dynibo", 9.80665

    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        import dynibo

        with tempfile.NamedTemporaryFile("w", suffix=".urdf") as file:
            file.write(urdf)
            file.flush()
            self.robot = dynibo.Robot.from_urdf(file.name)
        joint_order = breadth_first(urdf)
        self.order = [joint_order.index(name) for name in joints]

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        q, v, x = (self.in_peer_order(array) for array in (q, v, x))
        ask = getattr(self.robot, query)
        if query == "mass_matrix":
            n = q.shape[1]
            return lambda: np.array([ask(q_k) for q_k in q]).reshape(-1, n, n)
        return lambda: np.array([ask(*state) for state in zip(q, v, x, strict=True)])


class _Jax(Peer):
    """A library on JAX, in double precision: `jax.jit` of `jax.vmap`, compiled for each number of states."""

    limited = True

    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        self.jax, self.compiled = jax, dict[str, Any]()
        with tempfile.NamedTemporaryFile("w", suffix=".urdf") as file:
            file.write(urdf)
            file.flush()
            self.load(file.name, urdf, joints)

    @abstractmethod
    def load(self, file: str, urdf: str, joints: Sequence[str]) -> None:
        """Loads the robot."""

    @abstractmethod
    def function(self, query: str) -> Callable[[Any, Any, Any], Any]:
        """Returns the function of one state."""

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        if query not in self.compiled:
            self.compiled[query] = self.jax.jit(self.jax.vmap(self.function(query)))
        ask = self.compiled[query]
        inputs = [self.jax.device_put(self.in_peer_order(array)) for array in (q, v, x)]
        return lambda: ask(*inputs).block_until_ready()

    def result(self, answer: Any) -> Array:
        return super().result(np.asarray(answer))


class Mjx(_Jax):
    """`mjx.inverse` and `mjx.forward`, constraints off."""

    name, package = "MJX", "mujoco-mjx"

    def load(self, file: str, urdf: str, joints: Sequence[str]) -> None:
        from mujoco import mjx

        self.mjx = mjx
        model = MuJoCo(urdf, joints)
        self.order = model.order
        self.model, self.data = mjx.put_model(model.model), mjx.make_data(model.model)

    def function(self, query: str) -> Callable[[Any, Any, Any], Any]:
        mjx, model, data = self.mjx, self.model, self.data

        def inverse(q: Any, v: Any, x: Any) -> Any:
            return mjx.inverse(model, data.replace(qpos=q, qvel=v, qacc=x)).qfrc_inverse

        def forward(q: Any, v: Any, x: Any) -> Any:
            return mjx.forward(model, data.replace(qpos=q, qvel=v, qfrc_applied=x)).qacc

        def mass(q: Any, v: Any, x: Any) -> Any:
            with_inertia = mjx.crb(model, mjx.com_pos(model, mjx.kinematics(model, data.replace(qpos=q))))
            return mjx.full_m(model, with_inertia)

        return {"inverse_dynamics": inverse, "forward_dynamics": forward, "mass_matrix": mass}[query]


class Frax(_Jax):
    """Its `Robot`, whose gravity is 9.81 m/s^2."""

    name, package = "frax", "frax"

    def load(self, file: str, urdf: str, joints: Sequence[str]) -> None:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import frax

            self.robot = frax.Robot(file, joint_ordering=list(joints))

    def function(self, query: str) -> Callable[[Any, Any, Any], Any]:
        robot = self.robot
        gravity = self.jax.numpy.array([0.0, 0.0, GRAVITY, 0.0, 0.0, 0.0])  # the base's acceleration
        return {
            "inverse_dynamics": lambda q, v, x: robot.rnea(q, v, x, gravity, None),
            "forward_dynamics": lambda q, v, x: robot.forward_dynamics(q, v, x, None),
            "mass_matrix": lambda q, v, x: robot.mass_matrix(q),
        }[query]


def _with_mass_matrix(solve: Any, query: str, mass: Any, bias: Any, x: Any) -> Any:
    """Returns the answer of a library that has a mass matrix and a bias force: M x + h, M^-1 (x - h), or M."""
    if query == "mass_matrix":
        return mass
    return (mass @ x[..., None])[..., 0] + bias if query == "inverse_dynamics" else solve(mass, x - bias)


class Adam(_Jax):
    """Its JAX backend. Its recursions are for floating bases: this takes mass matrix and bias force of a fixed one."""

    name, package = "adam, JAX", "adam-robotics"

    def load(self, file: str, urdf: str, joints: Sequence[str]) -> None:
        from adam.jax import KinDynComputations

        gravity = self.jax.numpy.array([0.0, 0.0, -GRAVITY, 0.0, 0.0, 0.0])
        self.model = KinDynComputations(file, list(joints), gravity=gravity)

    def function(self, query: str) -> Callable[[Any, Any, Any], Any]:
        base, zero_base, solve = np.eye(4), np.zeros(6), self.jax.numpy.linalg.solve

        def ask(q: Any, v: Any, x: Any) -> Any:
            mass = self.model.mass_matrix(base, q)[6:, 6:]
            bias = None if query == "mass_matrix" else self.model.bias_force(base, q, zero_base, v)[6:]
            return _with_mass_matrix(solve, query, mass, bias, x)

        return ask


class AdamTorch(Peer):
    """The same by its PyTorch backend for batches, with one thread."""

    name, package, limited = "adam, PyTorch", "torch", True

    def __init__(self, urdf: str, joints: Sequence[str]) -> None:
        import torch
        from adam.pytorch import KinDynComputationsBatch

        torch.set_num_threads(1)
        self.torch = torch
        with tempfile.NamedTemporaryFile("w", suffix=".urdf") as file:
            file.write(urdf)
            file.flush()
            gravity = torch.tensor([0.0, 0.0, -GRAVITY, 0.0, 0.0, 0.0], dtype=torch.float64)
            self.model = KinDynComputationsBatch(file.name, list(joints), gravity=gravity, dtype=torch.float64)

    def call(self, query: str, q: Array, v: Array, x: Array) -> Call:
        torch = self.torch
        base = torch.eye(4, dtype=torch.float64).expand(len(q), 4, 4)
        zero_base = torch.zeros(len(q), 6, dtype=torch.float64)
        q, v, x = (torch.from_numpy(array.copy()) for array in (q, v, x))

        def ask() -> Any:
            mass = self.model.mass_matrix(base, q)[:, 6:, 6:]
            bias = None if query == "mass_matrix" else self.model.bias_force(base, q, zero_base, v)[:, 6:]
            return _with_mass_matrix(torch.linalg.solve, query, mass, bias, x)

        return ask

    def result(self, answer: Any) -> Array:
        return answer.numpy()


PEERS: tuple[type[Peer], ...] = (
    DynService,
    PinocchioCpp,
    PinocchioParallel,
    Pinocchio,
    MuJoCo,
    Drake,
    Dynibo,
    Mjx,
    Frax,
    Adam,
    AdamTorch,
)
ABSENT = {"bard": "the package of this name on PyPI contains no code (0.1, 2021)"}
"""Peers that no package on PyPI contains."""


def main() -> None:
    """Runs the benchmark, prints its table, and writes JSON and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one robot, small batches, few rounds: about a minute")
    parser.add_argument("--rounds", type=int, default=15, help="of calls of all peers in turn")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--page", type=Path, help="write a page with plots next to it")
    parser.add_argument("--only", nargs="+", help="names of peers to compare with")
    arguments = parser.parse_args()
    os.environ["DYN_SERVICE_CACHE"] = tempfile.mkdtemp(prefix="peers-")  # so that first calls compile
    # One thread, as the other peers have by themselves.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    if hasattr(os, "sched_setaffinity"):  # JAX has no option for one thread
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    names = ["panda"] if arguments.quick else [*ROBOTS, *(f"chain of {n}" for n in CHAINS)]
    batches = BATCHES[:2] if arguments.quick else BATCHES
    peers = [kind for kind in PEERS if not (arguments.quick and kind is PinocchioCpp)]
    if arguments.only:
        peers = [kind for kind in peers if kind is DynService or kind.name in arguments.only]
    results = measure(peers, names, batches, 5 if arguments.quick else arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    if arguments.page is not None:
        write_page(results, arguments.page)


def measure(kinds: Sequence[type[Peer]], names: Sequence[str], batches: Sequence[int], rounds: int) -> dict[str, Any]:
    """Returns the machine, versions, what is missing, and the figures: us per state by robot, query, batch, peer."""
    figures: list[dict[str, Any]] = []
    missing, first = dict(ABSENT), dict[str, float]()
    rng = np.random.default_rng(0)
    operations = {}
    for name in names:
        urdf = chain(int(name.split()[-1])) if name.startswith("chain") else bare(ROOT / "urdf" / f"{name}.urdf")
        joints = Robot.from_text(urdf).joint_names
        peers: list[Peer] = []
        for kind in kinds:
            if kind.limited and name not in FEW_ROBOTS:
                continue
            try:
                peers.append(kind(urdf, joints))
            except Exception as error:  # noqa: BLE001  # a peer's own errors are of any type
                missing[f"{kind.name}, {name}"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        for query in QUERIES:
            if name == PLOTTED_ROBOT and isinstance(peers[0], DynService):
                operations[query] = peers[0].operations(query)
            for batch in batches:
                numbers = batch * len(joints) * (len(joints) if query == "mass_matrix" else 1)
                if numbers > MAX_NUMBERS:
                    continue
                print(f"{name}, {query}, {batch}", file=sys.stderr, flush=True)
                states = rng.uniform(-1.0, 1.0, (3, batch, len(joints)))
                measured_peers = [peer for peer in peers if not peer.limited or batch in FEW_BATCHES]
                times_of_peer = times(measured_peers, query, states, rounds, missing, name, first)
                figures += [
                    {"robot": name, "joints": len(joints), "query": query, "batch": batch, "peer": peer, "us": us}
                    for peer, us in times_of_peer.items()
                ]
    limits = {"operations": operations, **rates()}
    environment = {"machine": machine(), "versions": versions(), "missing": missing, "first": first, "limits": limits}
    return {**environment, "figures": figures}


def times(
    peers: Sequence[Peer],
    query: str,
    states: Array,
    rounds: int,
    missing: dict[str, str],
    robot: str,
    first: dict[str, float],
) -> dict[str, list[float]]:
    """Returns the us per state of each peer, by round. A peer that is slow with this batch is left out.

    `first` gets the seconds of the first call of each peer, with what it compiles; `missing` the reason why a peer is
    not timed, such as results that differ from this project's.
    """
    calls: dict[str, tuple[Call, int]] = {}
    own_peer = next(peer for peer in peers if isinstance(peer, DynService))
    for peer in (peer for peer in peers if query in peer.queries):
        # The first call compiles, and its answer is compared: a few states show a peer that is wrong or slow at once.
        sample = states if peer.limited else states[:, :8]
        start_s = perf_counter()
        try:
            answer = peer.result(peer.call(query, *sample)())
            first_call_s = perf_counter() - start_s
            # Before it is timed: a peer that computes something else is not slower or faster.
            check_equal(peer, query, robot, answer, own_peer.expected(query, peer.gravity, *sample))
        except Exception as error:  # noqa: BLE001
            missing[f"{peer.name}, {robot}, {query}"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        first.setdefault(f"{peer.name}, {robot}, {query}", first_call_s)
        call = peer.call(query, *sample)
        call()
        start_s = perf_counter()
        call()
        if (perf_counter() - start_s) / sample.shape[1] * states.shape[1] > LONGEST_CALL_S and states.shape[1] > 1:
            continue
        call = peer.call(query, *states)
        call()
        start_s = perf_counter()
        call()
        # Rounds of 20 ms: far above the clock's resolution, short enough that all peers meet the same machine.
        calls[peer.name] = call, max(1, int(0.02 / max(perf_counter() - start_s, 1e-7)))
    times_of_peer: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (call, count) in calls.items():
            start_s = perf_counter()
            for _ in range(count):
                call()
            times_of_peer[name].append((perf_counter() - start_s) / count / states.shape[1] * 1e6)
    return times_of_peer


def check_equal(peer: Peer, query: str, robot: str, answer: Array, expected: Array) -> None:
    """Raises ValueError if a peer's results differ from the expected ones by more than rounding."""
    error = float(np.abs(answer - expected).max() / np.abs(expected).max())
    if answer.shape != expected.shape or not error <= MAX_DIFFERENCE:
        raise ValueError(
            f"the results of {peer.name} for {query} of {robot} differ by {error:.1e} of the largest entry"
        )


def breadth_first(urdf: str) -> list[str]:
    """Returns the names of the joints that move, each depth of the tree after the one above it."""
    child_joints: dict[str | None, list[Any]] = {}
    joints = ElementTree.fromstring(urdf).findall("joint")
    for joint in joints:
        child_joints.setdefault(joint.find("parent").get("link"), []).append(joint)  # type: ignore[union-attr]
    children = {joint.find("child").get("link") for joint in joints}  # type: ignore[union-attr]
    joint_queue = [joint for link in child_joints if link not in children for joint in child_joints[link]]
    for joint in joint_queue:  # which grows
        joint_queue += child_joints.get(joint.find("child").get("link"), [])
    return [joint.get("name") for joint in joint_queue if joint.get("type") != "fixed"]


def bare(path: Path) -> str:
    """Returns a robot's URDF with what all peers treat alike: no passive forces, mimic joints, shapes or turns."""
    text = path.read_text()
    for pattern in (r"<dynamics[^>]*/>", r"<mimic[^>]*/>", r"(?s)<(visual|collision)\b.*?</\1>", r"(?s)<!--.*?-->"):
        text = re.sub(pattern, "", text)
    text = text.replace('type="continuous"', 'type="revolute"')
    return re.sub(
        r'(?s)(<joint[^>]*type="revolute"(?:(?!</joint>|<limit).)*)(</joint>)',
        r'\1<limit lower="-9" upper="9" effort="9" velocity="9"/>\2',
        text,
    )


def chain(bodies: int) -> str:
    """Returns the URDF of a chain of links of 0.2 m, whose joints turn about x, y and z in turn."""
    links, joints = ['<link name="base"/>'], []
    for k in range(bodies):
        links.append(
            f'<link name="l{k}"><inertial><origin xyz="0.1 0.01 0.02"/><mass value="1"/>'
            '<inertia ixx="0.002" ixy="0" ixz="0" iyy="0.004" iyz="0" izz="0.005"/></inertial></link>'
        )
        axis = ("1 0 0", "0 1 0", "0 0 1")[k % 3]
        joints.append(
            f'<joint name="j{k}" type="revolute"><parent link="{f"l{k - 1}" if k else "base"}"/><child link="l{k}"/>'
            f'<origin xyz="{0.2 if k else 0} 0 0"/><axis xyz="{axis}"/>'
            '<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>'
        )
    return f'<robot name="chain{bodies}">{"".join(links + joints)}</robot>'


def machine() -> dict[str, Any]:
    """Returns the processor, its cores and the load."""
    models = re.findall(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Returns the installed versions of the peers."""
    package_versions = {}
    for package in dict.fromkeys(kind.package for kind in PEERS):
        try:
            package_versions[package] = (
                __version__ if package == DynService.package else importlib.metadata.version(package)
            )
        except importlib.metadata.PackageNotFoundError:
            package_versions[package] = "not installed"
    return package_versions


def rates() -> dict[str, float]:
    """Returns operations per second of a product of matrices in cache, and bytes per second of a copy of 128 MB."""
    a, flat = np.ones((256, 256)), np.ones(1 << 24)
    out, copied = np.empty_like(a), np.empty_like(flat)

    def best(call: Call) -> float:
        durations = []
        for _ in range(30):
            start_s = perf_counter()
            call()
            durations.append(perf_counter() - start_s)
        # The least of thirty: what the machine can do, not what else it was doing.
        return min(durations)

    seconds, copying = best(lambda: np.matmul(a, a, out=out)), best(lambda: np.copyto(copied, flat))
    return {"operations_per_s": 2.0 * 256**3 / seconds, "bytes_per_s": 2.0 * flat.nbytes / copying}


def least_us(results: Mapping[str, Any], query: str, joints: int) -> tuple[float, float]:
    """Returns the us per state that arithmetic and memory allow at least, for the robot that is drawn."""
    limits = results["limits"]
    numbers = joints + joints**2 if query == "mass_matrix" else 4 * joints
    return (1e6 * limits["operations"][query] / limits["operations_per_s"], 8e6 * numbers / limits["bytes_per_s"])


def table(results: Mapping[str, Any]) -> str:
    """Returns Markdown tables of the medians: us per state of this project, and how many times that of the others."""
    lines = []
    peers = sorted(dict.fromkeys(row["peer"] for row in results["figures"]), key=lambda peer: peer != DynService.name)
    for query in QUERIES:
        rows = [row for row in results["figures"] if row["query"] == query]
        if not rows:
            continue
        lines += ["", f"## {query.replace('_', ' ').capitalize()}", "", f"| robot | states | {' | '.join(peers)} |"]
        lines.append("|---" * (2 + len(peers)) + "|")
        for robot, batch in dict.fromkeys((row["robot"], row["batch"]) for row in rows):
            us = {row["peer"]: median(row["us"]) for row in rows if (row["robot"], row["batch"]) == (robot, batch)}
            own_us = us[DynService.name]
            cells = [
                f"{own_us:.3g}",
                *(f"{us[p] / own_us:.1f}" if p in us else "" for p in peers if p != DynService.name),
            ]
            lines.append(f"| {robot} | {batch} | {' | '.join(cells)} |")
    spreads = [
        (quarters[2] - quarters[0]) / quarters[1]
        for row in results["figures"]
        if len(row["us"]) > 3 and (quarters := quantiles(row["us"], n=4))
    ]
    if spreads:
        quartile_text = f"{median(spreads):.1%} of it apart (median of all figures), at most {max(spreads):.0%}"
        lines += ["", f"The quartiles of a figure are {quartile_text}."]
    return "\n".join(lines)


def first_calls(results: Mapping[str, Any]) -> str:
    """Returns a table of the seconds of first calls for the robot that is drawn."""
    seconds = {
        tuple(key.split(", " + PLOTTED_ROBOT + ", ")): s for key, s in results["first"].items() if PLOTTED_ROBOT in key
    }
    peers = [peer for peer in dict.fromkeys(peer for peer, _ in seconds) if max(seconds_of_peer(seconds, peer)) > 0.05]
    lines = [
        "## First call",
        "",
        "Seconds until the first answer, with what is compiled; other peers take less than 0.05 s.",
    ]
    lines += [
        "",
        f"| {PLOTTED_ROBOT} | {' | '.join(q.replace('_', ' ') for q in QUERIES)} |",
        "|---" * (1 + len(QUERIES)) + "|",
    ]
    for peer in peers:
        cells = (f"{seconds[peer, q]:.2f}" if (peer, q) in seconds else "" for q in QUERIES)
        lines.append(f"| {peer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def seconds_of_peer(seconds: Mapping[Any, float], peer: str) -> list[float]:
    return [s for (name, _), s in seconds.items() if name == peer]


def write_page(results: Mapping[str, Any], page: Path) -> None:
    """Writes the page and its plots: time per state over the number of states."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    robot = PLOTTED_ROBOT
    joints = next(row["joints"] for row in results["figures"] if row["robot"] == robot)
    with mpl.rc_context({"svg.hashsalt": "peers", "svg.fonttype": "none"}):
        figure, axes = plt.subplots(1, len(QUERIES), figsize=(11, 3.6), layout="constrained", sharey=True)
        for ax, query in zip(axes, QUERIES, strict=True):
            for peer in dict.fromkeys(row["peer"] for row in results["figures"]):
                rows = [r for r in results["figures"] if (r["robot"], r["query"], r["peer"]) == (robot, query, peer)]
                ax.loglog([r["batch"] for r in rows], [median(r["us"]) for r in rows], "o-", label=peer, ms=4)
            for limit_us, style, label in zip(least_us(results, query, joints), ("--", ":"), LIMITS, strict=True):
                ax.axhline(limit_us, color="black", lw=1.0, ls=style, label=label)
            ax.set(title=query.replace("_", " "), xlabel="states in a call")
            ax.grid(visible=True, alpha=0.3)
        axes[0].set_ylabel("time per state, us")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        (page.parent / "images").mkdir(exist_ok=True)
        figure.savefig(page.parent / "images" / "peers.svg", metadata={"Date": None})
    first = first_calls(results)
    host, library_versions = (
        results["machine"],
        ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
    )
    missing = "".join(f"\n- {subject}: {why}" for subject, why in results["missing"].items())
    page.write_text(
        f"""# Speed compared with other libraries

How fast each library answers on one core: for dyn_service the time per state in us, for the others how many times as
long they take. Results were compared before they were timed. `python benchmarks/peers.py --page docs/peers.md` writes
this page; a library is added as a class with two methods.

{host["processor"]}, {host["cores"]} cores, load {host["load"]} at the end; Python {host["python"]}; {library_versions}.

Peers without a call for batches are called in a loop over the states. Forward dynamics is ABA in Pinocchio and Drake;
MuJoCo solves with the mass matrix, and its `mj_forward` also computes what its solver and sensors need. One state of
Pinocchio's C++ contains the call from Python, 0.6 us. Empty cells: no such call, not measured, or one call would
take more than {LONGEST_CALL_S:g} s.

![time per state over the number of states, {robot}](images/peers.svg)

The plot is of the robot {robot}. The two limits in it are the time for the operations of dyn_service's kernel at the
rate of a product of matrices in cache ({results["limits"]["operations_per_s"] / 1e9:.0f} operations per ns), and the
time for its inputs and outputs at the rate of a large copy ({results["limits"]["bytes_per_s"] / 1e9:.0f} bytes per ns),
both measured in the same run.

{first}
{table(results)}
{f"{chr(10)}## Not measured{chr(10)}{missing}{chr(10)}" if missing else ""}"""
    )


if __name__ == "__main__":
    main()
