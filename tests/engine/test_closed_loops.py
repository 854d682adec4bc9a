"""Files with loops that no loop joint closes: efforts are refused unless loops are cut; kinematics answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import QUERIES, AsyncClient, Client, Overlay, Payload, Robot, Server, connect
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.cli import main as cli
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.launch.planner import make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.parsing.conversion import urdf_of, written
from dyn_service.parsing.files import read_text
from dyn_service.service.server.app import open_robots, open_server
from dyn_service.service.server.settings import ServerSettings
from dyn_service.support.shipped import launch_files
from tests.service.conftest import WAIT_MS, assert_same, sample

WAIT_S = WAIT_MS / 1e3
BODY = "<inertial><pose>0.1 0 0 0 0 0</pose><mass>1</mass></inertial>"


def closed(*, gearbox: bool = False) -> str:
    """A crank, its rod and a slider, closed by a joint with two axes between rod and slider, or a gearbox."""
    joints = {
        "crank_joint": ("revolute", "world", "crank", "0 -1 0"),
        "pin": ("revolute", "crank", "rod", "0 -1 0"),
        "slide": ("prismatic", "world", "slider", "1 0 0"),
        "wrist_pin": ("gearbox" if gearbox else "universal", "rod", "slider", "0 -1 0"),
    }
    links = "".join(f'<link name="{name}">{BODY}</link>' for name in ("crank", "rod", "slider"))
    elements = "".join(
        f'<joint name="{name}" type="{kind}"><parent>{parent}</parent><child>{child}</child>'
        f"<axis><xyz>{axis}</xyz></axis></joint>"
        for name, (kind, parent, child, axis) in joints.items()
    )
    return f'<sdf version="1.10"><model name="slider_crank">{links}{elements}</model></sdf>'


@pytest.fixture(scope="module")
def crank() -> Robot:
    return Robot.from_text(closed())


@pytest.fixture(scope="module")
def tree() -> Robot:
    return Robot.from_text(closed(), loops="cut")


KINEMATIC = (
    "imu", "constraint_bases", "link_poses", "point_motion", "topology", "newton_euler_blocks", "momentum",
    "system_momentum", "energy", "jacobians", "bias_accelerations", "integrate", "dynamic_parameters",
    "momentum_regressor", "energy_regressor", "difference", "neutral", "random_configuration", "centroidal_derivatives",
    "point_motion_derivatives",
)  # fmt: skip
"""Queries about motion, momentum and energy, whose answers do not depend on the forces in the loops."""


def called(robot: Any, query: str) -> Any:
    vectors, numbers = sample(robot, query)
    return getattr(robot, query)(*vectors.values(), **numbers)


def refused(robot: Robot, query: str) -> None:
    called(robot, query)
    pytest.fail(f"{query} is not refused: add it to KINEMATIC in {__file__} if it needs no forces in the loop")


@pytest.mark.parametrize("query", [name for name in QUERIES if name != "influence_operators"])
def test_what_needs_the_load_of_the_closing_joint_is_refused(crank: Robot, tree: Robot, query: str) -> None:
    if query in KINEMATIC:
        assert_same(called(crank, query), called(tree, query))
        return
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match=r"joint 'wrist_pin'.*'rod' to 'slider'.*loops=\"cut\""):
            refused(crank, query)
    assert called(tree, query) is not None
    with pytest.raises(FailedPreconditionError, match="'wrist_pin'"):
        called(crank.with_payload(Payload("slider", 1.0)), query)


def test_by_choice_of_the_kernel(crank: Robot) -> None:
    """Influences of links that yield need the inverse of the mass matrix, those of rigid ones do not."""
    q = crank.neutral()
    assert crank.influence_operators(q, operator="D").phi.shape == (3, 6, 6)
    with pytest.raises(FailedPreconditionError, match=r"operator='beta'.*'wrist_pin'"):
        crank.influence_operators(q, operator="beta")


def test_computations_lists_and_files(crank: Robot, tree: Robot, tmp_path: Path) -> None:
    q, v = crank.neutral(), np.zeros(crank.nv)
    refusal = pytest.raises(FailedPreconditionError, match="'wrist_pin'")
    with refusal:
        crank.simulate(q, v, dt=1e-3, steps=1)
    with pytest.raises(FailedPreconditionError, match=r"^mass_matrix has no answer"):
        crank.evaluate(["link_poses", "mass_matrix"], q=q)
    with pytest.raises(FailedPreconditionError, match=r"^forward_dynamics has no answer"):
        crank.evaluate(["energy", "forward_dynamics"], q=q, v=v, tau=v)
    with refusal:
        crank.verify(q, v, v)
    with refusal:
        crank.export(["inverse_dynamics"], tmp_path)
    with refusal:
        crank.export_fmu(tmp_path / "r.fmu")
    crank.prepare()
    assert crank.evaluate(["link_poses", "energy"], q=q, v=v).keys() == {"link_poses", "energy"}
    loadless = ["verify", "loop_error", "assemble"]
    assert [name for name, row in COMPUTATIONS.items() if row.robot and not row.has_loads] == loadless
    for name in loadless[1:]:
        with refusal:
            getattr(crank, name)(q)
    assert np.isfinite(tree.simulate(q, v, dt=1e-3, steps=3).q).all()


def test_the_robots_differ(crank: Robot, tree: Robot) -> None:
    """The fingerprints differ, so that a controller of one robot does not drive the other."""
    assert crank.fingerprint != tree.fingerprint
    assert crank.receipt.fingerprint == crank.fingerprint
    assert [note.kind for note in tree.receipt.notes if "wrist_pin" in note.element] == ["reported"]
    assert [note.element for note in crank.receipt.of_kind("loop")] == ["joint 'wrist_pin'"]
    assert "wrist_pin" in crank.description.loops[0]
    assert tree.description.loops == ()
    assert tree.overlaid(Overlay()).description.loops == ()
    with pytest.raises(InvalidArgumentError, match="loops must be closed or cut, found 'open'"):
        Robot.from_text(closed(), loops="open")  # type: ignore[arg-type]


def test_over_the_wire(crank: Robot, tree: Robot) -> None:
    q, v = crank.neutral(), np.zeros(crank.nv)
    with Server([], endpoints=["tcp://127.0.0.1:0"], workers=1, allow_load=True) as server:
        endpoint = server.endpoints[0]
        with Client(endpoint, timeout_s=WAIT_S) as client:
            remote = client.load_robot(closed())
            assert remote.description.loops == crank.description.loops
            with pytest.raises(FailedPreconditionError) as remote_error:
                remote.inverse_dynamics(q, v, v)
            with pytest.raises(FailedPreconditionError) as local_error:
                crank.inverse_dynamics(q, v, v)
            assert str(remote_error.value) == str(local_error.value)
            with pytest.raises(FailedPreconditionError, match=r"simulate has no answer.*'wrist_pin'"):
                remote.simulate(q, v, dt=1e-3, steps=2)
            assert_same(remote.link_poses(q), crank.link_poses(q))
            with pytest.raises(InvalidArgumentError, match=r"which are closed.*'wrist_pin'.*found 'cut'"):
                connect(f"{endpoint}/slider_crank", loops="cut")
            client.unload_robot("slider_crank")
            tree_there = client.load_robot(closed(), loops="cut")
            assert_same(tree_there.inverse_dynamics(q, v, v), tree.inverse_dynamics(q, v, v))
            with connect(f"{endpoint}/slider_crank", loops="cut") as same:
                assert same.fingerprint == tree.fingerprint
            client.unload_robot("slider_crank")
            with pytest.raises(InvalidArgumentError, match="loops must be closed or cut") as error:
                client.load_robot(closed(), loops="open")  # type: ignore[arg-type]
            assert error.value.path == "options.loops"


@pytest.mark.anyio
async def test_from_a_coroutine(tree: Robot) -> None:
    with Server([], endpoints=["tcp://127.0.0.1:0"], allow_load=True) as server:
        async with AsyncClient(server.endpoints[0], timeout_s=WAIT_S) as client:
            assert (await client.load_robot(closed(), loops="cut")).fingerprint == tree.fingerprint


def test_files_commands_and_parameters(
    tree: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "crank.sdf"
    file.write_text(closed())
    for robot in (Robot.from_file(file, loops="cut"), connect(file, loops="cut"), connect(closed(), loops="cut")):
        assert robot.fingerprint == tree.fingerprint
    [served] = open_robots(ServerSettings(robots=[str(file)], loops="cut"))
    assert served.fingerprint == tree.fingerprint
    for loops in ("closed", "cut"):
        launch = read_launch_file(launch_files()["robot"])
        plan = make_plan(launch, {"robot": str(file), "loops": loops}, folder=tmp_path)
        assert [process.parameters["loops"] for process in plan.processes[:2]] == [loops] * 2

    def dyn(*words: str) -> tuple[Any, str]:
        monkeypatch.setattr("sys.argv", ["dyn", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, "".join(capsys.readouterr())

    for options, status, words in (([], 1, "'wrist_pin'"), (["--loops", "cut"], 0, "")):
        for command in (["check", "--dynamics"], ["check", "--no-kernels", "--strict"]):
            code, text = dyn(*command, *options, str(file))
            assert (code, words in text) == (status, True), command
    for suffix in ("urdf", "mjcf", "sdf"):
        target = tmp_path / f"again.{suffix}"
        code, text = dyn("convert", str(file), str(target))
        assert code == 1, text
        assert "(--loops cut, loops: cut)" in text
        assert not target.exists()
        code, text = dyn("convert", str(file), str(target), "--loops", "cut")
        assert code == 0, text
        assert "wrist_pin" in text  # told as missing
        tau = [1.0, 2.0, 3.0]
        converted, v = Robot.from_file(target), np.zeros(3)
        a = converted.forward_dynamics(converted.neutral(), v, tau)
        # the same numbers, rounded in the text of the file
        np.testing.assert_allclose(a, tree.forward_dynamics(tree.neutral(), v, tau), rtol=1e-9)
    with pytest.raises(FailedPreconditionError, match="'wrist_pin'"):
        written(Robot.from_file(file).with_payload(Payload("slider", 1.0)).as_described, "urdf")  # type: ignore[attr-defined]


def test_servers_and_descriptions_tell_of_loops(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, lines = tmp_path / "crank.sdf", list[str]()
    file.write_text(closed())
    settings = {"robots": [str(file)], "endpoints": ["tcp://127.0.0.1:0"], "prepare": False, "workers": 0}
    for loops, count in (("closed", 1), ("cut", 0)):
        lines.clear()
        open_server(ServerSettings(**settings, loops=loops), lines.append).stop()  # type: ignore[arg-type]
        assert sum("slider_crank: no efforts" in line and "'wrist_pin'" in line for line in lines) == count
    assert "wrist_pin" not in urdf_of(file)
    assert "lacks what closes a loop: joint 'wrist_pin'" in caplog.text


def test_the_constructor_takes_no_options_of_files(tree: Robot) -> None:
    for description, options, words in (
        ("x", {}, "found str 'x'"),
        ("x", {"root": "floating"}, "options root: Robot.from_f"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            Robot(description, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"alone, found .* and the options loops: Robot.from_file"):
        Robot(tree.as_described, loops="cut")


MJCF = """<mujoco model="m"><worldbody>
  <body name="a"><joint name="j"/><geom size="0.1"/><site name="s"/>
    <body name="b" pos="1 0 0"><joint name="k"/><geom size="0.1"/></body></body>
  <body name="c"><joint name="l"/><geom size="0.1"/></body>
</worldbody><tendon><fixed name="t"><joint joint="j" coef="1"/></fixed></tendon><equality>{}</equality></mujoco>"""
URDF = """<robot name="u"><link name="a"/><link name="b"/><joint name="j" type="continuous"><parent link="a"/>
  <child link="b"/></joint>{}</robot>"""
CLOSING = {
    "gearbox": (closed(gearbox=True), "joint 'wrist_pin'"),
    "tendons": (MJCF.format('<tendon tendon1="t" tendon2="t"/>'), "equality <tendon>"),
    "tendon": (MJCF.format('<tendon tendon1="t"/>'), "equality <tendon>"),
    "joint": (MJCF.format('<joint joint1="j" joint2="k" polycoef="0 1 2"/>'), "equality <joint>"),
    "locked": (MJCF.format('<joint joint1="j"/>'), "equality <joint>"),
    "drake": (URDF.format('<drake:ball_constraint xmlns:drake="d"/>'), "<drake:ball_constraint>"),
    "gazebo": (
        URDF.format('<gazebo><joint name="c"><parent>a</parent><child>b</child></joint></gazebo>'),
        "joint 'c'",
    ),
}


@pytest.mark.parametrize("name", ["connect", "weld"])
def test_loop_joints_refuse_nothing_but_open_positions(name: str) -> None:
    ends = {"connect": 'body1="b" body2="c" anchor="0 0 0"', "weld": 'body1="b"'}[name]
    robot = Robot.from_text(MJCF.format(f"<{name} {ends}/>"))
    assert [joint.name for joint in robot.description.loop_joints] == [name]
    assert robot.description.loops == ()
    assert robot.evaluator.model.description.loop_refusal == ""
    assert robot.loop_error(robot.neutral()).shape == (1, 6)


@pytest.mark.parametrize("source", CLOSING)
def test_every_source_of_loops(source: str) -> None:
    text, element = CLOSING[source]
    assert [note.element for note in read_text(text).loops] == [element]
    with pytest.raises(FailedPreconditionError, match=element):
        called(Robot.from_text(text), "gravity_forces")
    assert called(Robot.from_text(text, loops="cut"), "gravity_forces") is not None


NOT_CLOSING = (
    MJCF.format('<weld body1="b" active="false"/>'),
    MJCF.format('<connect body1="b" body2="c" anchor="0 0 0" active="false"/>'),
    MJCF.format('<joint joint1="j" joint2="k"/>'),
    MJCF.format('<flex flex="f"/>'),
    URDF.format("<gazebo><plugin/></gazebo>"),
    URDF.format('<gazebo><joint name="c"><parent>world</parent><child>a</child></joint></gazebo>'),
)


@pytest.mark.parametrize("text", NOT_CLOSING)
def test_what_closes_none(text: str) -> None:
    assert not read_text(text).loops
