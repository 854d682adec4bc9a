"""Robots whose M(q) is not positive definite: what inverts it is refused and names the joint; the rest answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service import QUERIES, Client, Contact, Inertial, JointNumbers, Overlay, Robot, Server
from dyn_service.cli import main as cli
from dyn_service.errors import FailedPreconditionError
from dyn_service.formulations.verification import survey
from tests.service.conftest import WAIT_MS, sample

INVERTING = [(name, method) for name, row in QUERIES.items() for method in sorted(row.inverts_mass_matrix)]
ZERO = np.zeros(1)
"""Position and velocity of a robot with one joint."""


def link(name: str, moments: Any, *, mass: float = 1.0, com: str = "0 0 0") -> str:
    ixx, iyy, izz = moments
    return (
        f'<link name="{name}"><inertial><origin xyz="{com}"/><mass value="{mass!r}"/>'
        f'<inertia ixx="{ixx!r}" iyy="{iyy!r}" izz="{izz!r}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )


def joint(name: str, parent: str, child: str, axis: str, *, xyz: str = "0 0 0", extra: str = "") -> str:
    return (
        f'<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/><origin xyz="{xyz}"/>'
        f'<axis xyz="{axis}"/><limit lower="-3" upper="3" effort="9" velocity="9"/>{extra}</joint>'
    )


def robot(*parts: str, **options: Any) -> Robot:
    return Robot.from_text(f'<robot name="r">{"".join(parts)}</robot>', **options)


TRUNK = link("trunk", (0.03, 0.06, 0.07), mass=6.0)
HIP = (TRUNK, link("hip", (-0.0012, -0.0012, 0.00033), mass=0.5), joint("hip_joint", "trunk", "hip", "1 0 0"))


@pytest.fixture(scope="module")
def hip() -> Robot:
    return robot(*HIP)


def called(system: Any, query: str, method: str, lead: tuple[int, ...] = ()) -> Any:
    vectors, numbers = sample(system, query, lead)
    option = QUERIES[query].kernel_option
    return getattr(system, query)(*vectors.values(), **numbers, **({option: method} if option else {}))


@pytest.mark.parametrize(("query", "method"), INVERTING)
def test_what_inverts_it_is_refused_each_time(hip: Robot, query: str, method: str) -> None:
    for _ in range(2):  # the second call of a healthy robot is bound
        with pytest.raises(FailedPreconditionError, match=r"along joint 'hip_joint' is -0\.0012, .*of link 'hip'"):
            called(hip, query, method)
    with pytest.raises(FailedPreconditionError, match=r"at state \[0\].*'hip_joint'"):
        called(hip, query, method, (3,))


def test_what_does_not_invert_it_answers(hip: Robot) -> None:
    # Rounding only, of a single body.
    assert hip.inverse_dynamics(ZERO, ZERO, [1.0]) == pytest.approx([-0.0012], rel=1e-12)
    assert hip.mass_matrix(ZERO) == pytest.approx(np.array([[-0.0012]]), rel=1e-12)
    assert hip.massless_joint is None


COMPUTATIONS: dict[str, Callable[[Any], Any]] = {
    "rk4": lambda r: r.simulate(ZERO, ZERO, [1.0], dt=1e-3, steps=5),
    "implicit_midpoint": lambda r: r.simulate(ZERO, ZERO, [1.0], dt=1e-3, steps=5, integrator="implicit_midpoint"),
    "adaptive": lambda r: r.simulate(ZERO, ZERO, [1.0], dt=1e-3, steps=5, integrator="adaptive"),
    "stick_slip": lambda r: r.simulate(ZERO, ZERO, [1.0], dt=1e-3, steps=5, integrator="stick_slip"),
    "limits": lambda r: r.simulate(ZERO, ZERO, [1.0], dt=1e-3, steps=5, position_limits=True),
    "contact": lambda r: r.contact_dynamics(ZERO, ZERO, [1.0], Contact("hip", (0.0, 0.1, 0.0))),
    "rheonomic": lambda r: r.simulate_rheonomic({}, ZERO, ZERO, dt=1e-3, steps=5),
}


@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_computations_are_refused_too(hip: Robot, computation: str) -> None:
    with pytest.raises(FailedPreconditionError, match="'hip_joint' is -0"):
        COMPUTATIONS[computation](hip)


def test_a_client_gets_the_error(hip: Robot) -> None:
    with (
        Server([hip], endpoints=["tcp://127.0.0.1:0"], workers=1) as server,
        Client(server.endpoints[0], timeout_s=WAIT_MS / 1e3) as client,
    ):
        remote = client.robot("r")
        for ask in (lambda r: r.forward_dynamics(ZERO, ZERO, [1.0]), COMPUTATIONS["rk4"], COMPUTATIONS["stick_slip"]):
            texts = []
            for system in (hip, remote):
                with pytest.raises(FailedPreconditionError) as error:
                    ask(system)
                texts.append(str(error.value))
            assert texts[0] == texts[1]
        assert remote.inverse_dynamics(ZERO, ZERO, [1.0]) == hip.inverse_dynamics(ZERO, ZERO, [1.0])


def test_it_does_not_agree_with_itself(
    hip: Robot, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FailedPreconditionError, match="'hip_joint'"):
        survey(hip)
    (tmp_path / "hip.urdf").write_text(f'<robot name="r">{"".join(HIP)}</robot>')
    monkeypatch.setattr("sys.argv", ["dyn", "check", "--dynamics", str(tmp_path / "hip.urdf")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code
    assert "'hip_joint'" in capsys.readouterr().err


def test_no_function_is_exported(hip: Robot, tmp_path: Any) -> None:
    with pytest.raises(FailedPreconditionError, match=r"link 'hip'.* each state is checked"):
        hip.export(["forward_dynamics"], tmp_path)
    with pytest.raises(FailedPreconditionError, match="link 'hip'"):
        hip.export_fmu(tmp_path / "r.fmu")
    assert hip.export(["inverse_dynamics"], tmp_path)


def turned(lean: float) -> Robot:
    """A yaw carries a link whose moment about y is negative: M_11 = 0.01 + 0.02 cos^2 q_2 - `lean` sin^2 q_2."""
    return robot(
        link("base", (0.1, 0.1, 0.1)),
        link("turret", (0.01, 0.01, 0.01)),
        link("head", (0.03, -lean, 0.02)),
        joint("yaw", "base", "turret", "0 0 1"),
        joint("roll", "turret", "head", "1 0 0"),
    )


def test_states_at_which_it_is_positive_definite_answer() -> None:
    """Alone and in a batch; the first state at which it is not is named."""
    leaning = turned(0.05)
    q, v, tau = np.array([[0.1, 0.3], [0.2, 1.4], [0.3, 1.5]]), np.array([0.4, 0.5]), np.array([0.2, 0.1])
    for _ in range(2):
        a = leaning.forward_dynamics(q[0], v, tau)
        np.testing.assert_allclose(leaning.inverse_dynamics(q[0], v, a), tau, rtol=0, atol=1e-14)  # rounding of 0.2
        with pytest.raises(FailedPreconditionError, match=r"at state \[1\]: the inertia along joint 'yaw' is -0\.0"):
            leaning.forward_dynamics(q, v, tau)
    small = turned(0.0005)  # less than what the turret has, at all q
    a = small.forward_dynamics(q, v, tau)
    np.testing.assert_allclose(small.inverse_dynamics(q, v, a), np.broadcast_to(tau, q.shape), rtol=0, atol=1e-14)


def test_a_motion_ends_where_it_is_no_longer_positive_definite() -> None:
    leaning = turned(0.05)
    motion = leaning.simulate([0.0, 0.0], [0.0, 1.0], dt=1e-2, steps=20)
    assert motion.q[-1, 1] == pytest.approx(0.2, rel=1e-3)
    with pytest.raises(FailedPreconditionError, match="along joint 'yaw'"):
        leaning.simulate([0.0, 0.0], [0.0, 1.0], dt=1e-2, steps=100)


def test_armature_repairs_it() -> None:
    repaired = robot(*HIP).overlaid(Overlay(joints={"hip_joint": JointNumbers(armature=0.01)}))
    assert repaired.forward_dynamics(ZERO, ZERO, [1.0]) == pytest.approx([1.0 / 0.0088], rel=1e-12)
    with pytest.raises(FailedPreconditionError, match="'hip_joint'"):
        repaired.forward_dynamics(ZERO, ZERO, [1.0], passive=False)


def test_overlays_are_checked() -> None:
    """A moment may be negative by a thousandth of the largest; along its axis that is all there is."""
    healthy = robot(TRUNK, link("hip", (0.01, 0.01, 0.01)), joint("hip_joint", "trunk", "hip", "1 0 0"))
    assert healthy.forward_dynamics(ZERO, ZERO, [1.0]) == pytest.approx([100.0], rel=1e-12)
    bad = Overlay(links={"hip": Inertial(inertia=np.diag([-9e-6, 0.01, 0.01]))})
    overlay = Overlay(links={"hip": Inertial(inertia=np.array([np.diag([x, 0.01, 0.01]) for x in (1e-5, -9e-6)]))})
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match="'hip_joint' is -9e-06"):
            healthy.forward_dynamics(ZERO, ZERO, [1.0], overlay=bad)
        with pytest.raises(FailedPreconditionError, match=r"at state \[1\].*'hip_joint' is -9e-06"):
            healthy.forward_dynamics(ZERO, ZERO, [1.0], overlay=overlay)
        assert healthy.forward_dynamics(ZERO, ZERO, [1.0]) == pytest.approx([100.0], rel=1e-12)


def test_floating_bases_and_followers() -> None:
    slots = link("base", (1.66e4, -2.24e3, 0.0), mass=51.0)
    neck = (link("neck", (0.004, 0.004, 0.002), com="0 0 0.1"), joint("nod", "base", "neck", "0 1 0", xyz="0 0 0.5"))
    fixed, floating = (robot(slots, *neck, root=root) for root in ("fixed", "floating"))
    assert fixed.forward_dynamics(ZERO, ZERO, [1.0]).shape == (1,)
    with pytest.raises(FailedPreconditionError, match=r"'root_joint' is -.*link 'base'"):
        floating.forward_dynamics(floating.neutral(), np.zeros(7), np.zeros(7))
    finger = (link("a", (0.001, 0.001, 0.001)), link("b", (0.001, 0.001, -0.004)))
    hand = robot(
        TRUNK,
        *finger,
        joint("lead", "trunk", "a", "0 0 1"),
        joint("follow", "trunk", "b", "0 0 1", extra='<mimic joint="lead" multiplier="1"/>'),
    )
    with pytest.raises(FailedPreconditionError, match=r"'lead' is -0\.003,.*link 'b'"):
        hand.forward_dynamics(ZERO, ZERO, [1.0])


def test_a_branch_without_inertia_is_named_also_there() -> None:
    """A public humanoid has grippers without inertia, and impossible hips."""
    branch = robot(*HIP, '<link name="grip"/>', joint("close", "hip", "grip", "0 0 1"))
    assert branch.massless_joint == "close"
    with pytest.raises(FailedPreconditionError, match="branch of joint 'close' has no inertia"):
        branch.forward_dynamics(np.zeros(2), np.zeros(2), np.zeros(2))


def legs(
    moment: float, *, lever: float = 0.1, com: float = 0.0, mass: float = 2.0, twin: float = 2.5e-3, base: float = 8.0
) -> Robot:
    return robot(
        link("pelvis", (base * lever**2,) * 3, mass=base),
        link("left", (twin, twin, twin), mass=mass),
        link("right", (moment, moment, moment), mass=mass, com=f"0 0 {com!r}"),
        joint("left_yaw", "pelvis", "left", "0 0 1", xyz=f"0 {lever!r} 0"),
        joint("right_yaw", "pelvis", "right", "0 0 1", xyz=f"0 -{lever!r} 0"),
        root="floating",
    )


def test_an_inertia_that_vanishes_beside_its_mass_is_rounding() -> None:
    """2 kg within 2e-10 m of an axis that is 0.1 m from the next: a micrometre would be 2e-12 kg m^2."""
    for com in (0.0, -0.1):
        assert legs(1e-19, com=com).massless_joint == "right_yaw"
        assert legs(2e-12, com=com).massless_joint is None


@pytest.mark.parametrize(
    "tiny",
    [
        legs(1e-9, mass=1e-3, lever=5.0, base=1e4, twin=1e-9),  # fingers on a ship: 1 g, 1 mm thick
        legs(1e-18, mass=1e-9, lever=1e-4, base=1e-8, twin=1e-17, com=-1e-4),  # of micrograms and tenths of millimetres
    ],
)
def test_small_robots_are_no_rounding(tiny: Robot) -> None:
    q, v = tiny.neutral(), np.zeros(tiny.nv)
    a = np.array([0.0] * 6 + [0.7, 1.3])
    accelerations = tiny.forward_dynamics(q, v, tiny.inverse_dynamics(q, v, a, gravity=(0, 0, 0)), gravity=(0, 0, 0))
    np.testing.assert_allclose(
        accelerations, a, rtol=1e-12, atol=1e-12
    )  # each joint on its own scale: rounding is 1e-16


def test_healthy_robots_are_bound_and_not_checked() -> None:
    healthy = turned(-0.01)
    q, v = np.zeros(2), np.zeros(2)
    healthy.forward_dynamics(q, v, v)
    call = healthy.evaluator.direct_calls["forward_dynamics"]
    assert call((q, v, v), tuple(QUERIES["forward_dynamics"].argument_defaults)) is not None


def test_the_mass_beyond_a_joint_decides_whether_an_inertia_vanishes() -> None:
    """A rod along z on a light link that turns about z: 1.1e-19 kg m^2 of 1 kg is a radius of 3e-10 m, in all poses."""
    thin, rod = link("thin", (1e-19, 1e-19, 1e-19), mass=1e-9), link("rod", (1e-2, 1e-2, 1e-20), com="0 0 0.2")
    slide = joint("slide", "thin", "rod", "0 0 1").replace("revolute", "prismatic")
    lathe = robot(link("base", (1, 1, 1)), thin, rod, joint("spin", "base", "thin", "0 0 1"), slide)
    with pytest.raises(FailedPreconditionError, match="the branch of joint 'spin' has no inertia"):
        lathe.forward_dynamics([0.0, 0.0], [0.0, 0.0], [1.0, 0.0])


def test_small_links_of_a_long_robot_have_an_inertia() -> None:
    """A tool of a gram and a centimetre at 100 km: its inertia is formed in its own axes, with all digits."""
    tool = link("tool", (1e-7, 1e-7, 1e-7), mass=1e-3)
    boom = joint("turn", "boom", "tool", "1 0 0", xyz="1e5 0 0")
    crane = robot(link("base", (1, 1, 1)), link("boom", (1, 1, 1)), joint("swing", "base", "boom", "0 0 1"), boom, tool)
    a = crane.forward_dynamics([0.0, 0.0], [0.0, 0.0], [0.0, 1e-7])
    np.testing.assert_allclose(a, [0.0, 1.0], rtol=1e-12, atol=1e-12)
