"""Studies: the same bits however they are divided, interrupted or distributed; results against plain calls."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Inertial, Overlay, Robot, Wrench
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError
from dyn_service.graph.bags.motions import recording
from dyn_service.kernels.tiles import reduced
from dyn_service.studies import plan as plan_module
from dyn_service.studies import study as study_module
from dyn_service.studies.plan import TILE, Plan, Sampler, Samples, Vary
from dyn_service.studies.study import Study, _remote, specification
from tests.phrases import naming

for _module in ("xarray", "dask.array", "zarr"):
    pytest.importorskip(_module, reason="the extra `studies` is not installed: pip install '.[studies]'")


VARY: dict[str, Any] = {
    "q": {"uniform": [-3.0, 3.0]},
    "v": {"normal": [0.0, 1.0]},
    "a": {"values": [[0.0, 0.0], [1.0, -1.0], [2.0, 5.0]], "dim": "motion"},
    "payload.link2.mass": {"linspace": [0.5, 2.0, 2], "dim": "mass"},
}
OUTPUTS: dict[str, Any] = {
    "tau": {
        "query": "inverse_dynamics",
        "reduce": ["min", "max", "absmax", "mean", "rms", "cubic_mean", "histogram"],
        "range": [-50.0, 50.0],
    },
    "energy": {"query": "energy", "output": "kinetic", "reduce": ["max"]},
}
REST: dict[str, Any] = {"samples": {"sample": {"count": 70_000, "seed": 3}}, "keep": ["mass"], "check": ["effort"]}


@pytest.fixture(scope="module")
def robot() -> Robot:
    return Robot.from_urdf("urdf/double_pendulum.urdf")


@pytest.fixture(scope="module")
def study(robot: Robot) -> Study:
    vary = {key.replace("link2", robot.link_names[-1]): value for key, value in VARY.items()}
    study_of_loads: Study = robot.study(vary, OUTPUTS, **REST)
    return study_of_loads


def test_reductions_against_all_states(robot: Robot, study: Study) -> None:
    result = study.run(chunks=1, workers=2)
    plan = study.plan
    assert (plan.dims, plan.shape) == (("mass", "motion", "sample"), (2, 3, 70_000))
    inputs = plan.block([slice(1, 2), slice(0, 3), slice(0, 70_000)])
    tau = robot.inverse_dynamics(**inputs).reshape(-1, 2)
    reductions = {name: result[f"tau_{name}"].values[1] for name in OUTPUTS["tau"]["reduce"]}
    assert np.array_equal(reductions["min"], tau.min(0))
    assert np.array_equal(reductions["max"], tau.max(0))
    assert np.array_equal(reductions["absmax"], np.abs(tau).max(0))
    assert np.array_equal(result.tau_max_index.values[1], tau.argmax(0) + 210_000)
    assert np.allclose(reductions["mean"], tau.mean(0), rtol=1e-13, atol=1e-13)  # rounding of 210,000 numbers
    assert np.allclose(reductions["rms"], np.sqrt((tau**2).mean(0)), rtol=1e-13)
    assert np.allclose(reductions["cubic_mean"], np.cbrt((np.abs(tau) ** 3).mean(0)), rtol=1e-13)
    assert reductions["histogram"].sum() == tau.size
    counts_in_range = np.histogram(tau[:, 0], np.linspace(-50.0, 50.0, 101))[0]
    assert np.abs(reductions["histogram"][0, 1:-1] - counts_in_range).sum() <= 2  # an edge may round to either side
    index = int(result.energy_max_index.values[1])
    state = study.state(index)
    assert robot.energy(state["q"], state["v"], overlay=state["overlay"]).kinetic == result.energy_max.values[1]


def test_the_same_bits_however_divided_and_interrupted(robot: Robot, study: Study, tmp_path: Path) -> None:
    want = study.run(chunks=1, workers=1)
    assert want.identical(study.run(chunks=4, workers=2))
    calls: list[Any] = []

    def interrupt(_: float) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(tmp_path / "s", chunks=1, workers=1, progress=interrupt)
    tasks_run: list[Any] = []
    resumed = Study(robot, study.specification)
    task = resumed.task
    resumed.task = lambda *arguments: (tasks_run.append(arguments), task(*arguments))[1]  # type: ignore[method-assign]
    assert want.identical(resumed.run(tmp_path / "s", workers=2))
    assert len(tasks_run) == 12 - 2  # two masses, six chunks each
    tasks_run.clear()
    assert want.identical(resumed.run(tmp_path / "s"))
    assert tasks_run == []
    other = robot.with_payload(study.state(0)["overlay"].payloads[0])
    with pytest.raises(FailedPreconditionError, match=naming("another robot or study")):
        Study(other, study.specification).run(tmp_path / "s")


def test_killed_and_completed(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        f"robot: {Path('urdf/double_pendulum.urdf').resolve()}\n"
        "vary: {q: {uniform: [-3, 3]}, v: {uniform: [-1, 1]}, a: {constant: 0}}\n"
        "samples: {sample: {count: 200000}}\n"
        "outputs: {tau: {query: inverse_dynamics}, top: {query: inverse_dynamics, reduce: [max]}}\n"
    )
    dies = (
        "import os, sys; from dyn_service import Robot; from dyn_service.studies.study import Study, specification;"
        "from dyn_service.support.documents import read_document; values = dict(read_document(__import__('pathlib')"
        f".Path({str(file)!r})).value); r = Robot.from_file(values.pop('robot'));"
        f"Study(r, specification(values)).run({str(tmp_path / 'study.zarr')!r}, chunks=1, workers=1,"
        " progress=lambda _: os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", dies], check=False).returncode == -signal.SIGKILL
    command = [sys.executable, "-m", "dyn_service", "study", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "states: 200,000 (done: 65,536, left: 134,464), chunks: 4 (done: 1, left: 3), tasks: 4; about" in done.stdout
    assert done.stderr.splitlines() == [f"study.yaml: {percent} %" for percent in (50, 75, 100)]
    import xarray as xr

    robot = Robot.from_urdf("urdf/double_pendulum.urdf")
    values = {"vary": {"q": {"uniform": [-3, 3]}, "v": {"uniform": [-1, 1]}, "a": {"constant": 0}}}
    values |= {"samples": {"sample": {"count": 200_000}}, "outputs": {"tau": {"query": "inverse_dynamics"}}}
    plan = Study(robot, specification(values)).plan
    with xr.open_zarr(str(tmp_path / "study.zarr"), consolidated=False) as store:
        assert np.array_equal(store.tau.values, robot.inverse_dynamics(**plan.block([slice(0, 200_000)])))


def test_samples_do_not_depend_on_their_neighbours() -> None:
    from scipy.stats import qmc

    for kind in ("sobol", "latin_hypercube", "random"):
        points = Sampler(Samples(10_000, kind, seed=5), 3).entries(slice(0, 3))
        whole = points(0, 10_000)
        assert np.array_equal(points(4000, 9001), whole[4000:9001])
        assert np.abs(np.histogram(whole[:, 1], 10, (0, 1))[0] - 1000).max() < 120
    ours = Sampler(Samples(1 << 14, "sobol", seed=5), 4).entries(slice(0, 4))(0, 1 << 14)
    scipy_points = qmc.Sobol(4, bits=32, seed=np.random.default_rng(5)).random(1 << 14)
    assert np.array_equal(ours, scipy_points + 2.0**-33)
    assert len(ours) > 2 * TILE


def test_the_order_of_quantities_does_not_matter(robot: Robot) -> None:
    vary = {"v": Vary(uniform=(-1.0, 1.0)), "q": Vary(uniform=(-3.0, 3.0)), "a": Vary(constant=0.0)}
    link = robot.link_names[-1]
    vary |= {f"payload.{link}.mass": Vary(values=[1.0, 2.0], dim="mass"), "gravity": Vary(values=np.eye(2, 3), dim="g")}
    plans = [Plan(robot, dict(order), {"sample": Samples(9)}, []) for order in (vary.items(), [*vary.items()][::-1])]
    assert plans[0].dims == plans[1].dims == ("g", "mass", "sample")
    for name in ("q", "v"):
        assert np.array_equal(plans[0].state(23)[name], plans[1].state(23)[name])


def test_threads_share_overlays(robot: Robot) -> None:
    mass = f"payload.{robot.link_names[-1]}.mass"
    plan = Plan(robot, {mass: Vary(values=np.arange(1.0, 201.0).tolist(), dim="m")}, {}, [])

    class Cleared(dict):  # type: ignore[type-arg]
        """A map that another thread clears as soon as an entry is in it."""

        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            self.clear()

    plan._overlays = Cleared()
    assert float(plan.state(7)["overlay"].payloads[0].mass) == 8.0


def test_failures_are_counted(robot: Robot) -> None:
    q = np.zeros((5, 2))
    q[3, 0], q[4, 1] = np.inf, 400.0
    vary = {"q": {"values": q.tolist(), "dim": "pose"}, "v": {"constant": 0.0}}
    result = robot.study(
        vary,
        {"e": {"query": "energy", "output": "potential", "reduce": ["max", "mean"]}, "all": {"query": "bias_forces"}},
        check=["position"],
    ).run()
    want = robot.energy(q, np.zeros(2)).potential
    good = np.isfinite(want)
    assert json.loads(result.attrs["failures"])["not finite"] == 1
    assert json.loads(result.attrs["first_failures"])["not finite"] == 3
    assert result.e_max.values == want[good].max()
    assert np.isclose(result.e_mean.values, want[good].mean())
    assert np.isnan(result["all"].values[3]).any()


def test_errors_name_the_field(robot: Robot) -> None:
    ok: dict[str, Any] = {"tau": {"query": "gravity_forces"}}
    at_rest = {"q": {"constant": 0.0}}
    tau = {"query": "gravity_forces"}
    loop = {"query": "closed_loop", "options": {"law": "pd", "dt": 1e-3, "steps": 10, "q_ref": [0, 0], "kp": 1}}
    for vary, outputs, path, words in (
        ({"q": {}}, ok, "vary.q", ("constant", "uniform", "none")),
        ({"q": {"uniform": [0, 1]}}, ok, "samples.sample", ("count", "vary.q")),
        ({"q": {"uniforn": [0, 1]}}, ok, "vary.q.uniforn", ("'uniform'",)),
        ({"q": {"uniform": "limts"}}, ok, "vary.q.uniform", ("'limts'", "[lower, upper]")),
        ({"q": {"uniform": [[0, 0, 0], 1]}}, ok, "vary.q.uniform", ("2 numbers", "[0, 0, 0]")),
        ({"q": {"linspace": [0, 1, -2]}}, ok, "vary.q.linspace[2]", ("-2", "at least 1")),
        ({"q": {"values": []}}, ok, "vary.q.values", ("list", "[]")),
        ({"q": {"linspace": [0, 1, 10**30]}}, ok, "vary.q.linspace[2]", ("at most", "2147483648")),
        ({"q": {"values": "many"}}, ok, "vary.q.values", ("'many'", "numbers")),
        ({"q": {"values": 3.0}}, ok, "vary.q.values", ("list", "3.0")),
        ({"q": {"values": [10**400]}}, ok, "vary.q.values", ("numbers",)),
        ({"q.nobody": {"constant": 0}}, ok, "vary.q.nobody", ("'nobody'", robot.joint_names[1])),
        ({"payload.hand.mass": {"constant": 0}}, ok, "vary.payload.hand.mass", ("'hand'", robot.link_names[1])),
        (at_rest, {"tau": {"query": "energy", "output": "kinetic"}}, "vary.v", ("constant",)),
        (at_rest, {"tau": {"query": "gravity_force"}}, "outputs.tau.query", ("'gravity_forces'",)),
        (at_rest, {"tau": {**tau, "output": "forcs"}}, "outputs.tau.output", ("'forcs'", "'forces'")),
        (at_rest, {"tau": {**tau, "reduce": ["median"]}}, "outputs.tau.reduce[0]", ("'median'", "cubic_mean")),
        (at_rest, {"tau": {**tau, "reduce": "max"}}, "outputs.tau.reduce", ("'max'", "[max]")),
        (
            at_rest,
            {"tau": {**tau, "select": {"joint": ["x"]}}},
            "outputs.tau.select.joint",
            ("'x'", *robot.joint_names),
        ),
        (at_rest, {"tau": {**tau, "select": {"joint": "x"}}}, "outputs.tau.select.joint", ("'x'", "[x]")),
        (at_rest, {"tau": {**tau, "select": {"joints": ["x"]}}}, "outputs.tau.select.joints", ("'joints'", "'joint'")),
        (at_rest, {"tau": {**tau, "reduce": ["histogram"]}}, "outputs.tau.range", ("first < last", "None")),
        (at_rest, {"tau": {**tau, "options": {"gravty": [0, 0, 0]}}}, "outputs.tau.options", ("'gravty'", "'gravity'")),
        (at_rest, {"tau": {**tau, "options": {"gravity": [0, 0]}}}, "outputs.tau", ("gravity", "(2,)")),
        (at_rest, {"loop": loop}, "outputs.loop.options.kd", ("pd",)),
        ({**at_rest, "tua": {"constant": 0}}, ok, "vary.tua", ("gravity_forces", "'tua'", "q")),
        ({"q": {"values": [0], "dim": "joint"}}, ok, "vary.q.dim", ("outputs.tau", "'joint'")),
        ({"q": {"values": [0], "dim": "a/b"}}, ok, "vary.q.dim", ("a/b",)),
        (at_rest, {"code": {"query": "gravity_forces"}}, "outputs.code", ("'code'",)),
        (at_rest, {"a.b": {"query": "gravity_forces"}}, "outputs.a.b", ("'a.b'",)),
        (
            {**at_rest, "v": {"values": [1, 2], "dim": "n"}, "a": {"values": [1], "dim": "n"}},
            ok,
            "vary.v",
            ("'n'", "2", "1"),
        ),
    ):
        with pytest.raises(DynError, match=naming(*words)) as refusal:
            robot.study(vary, outputs).run()
        assert refusal.value.path == path, str(refusal.value)
        assert str(refusal.value).startswith(f"{path}: ")


def test_wrenches_in_the_options_of_a_file(robot: Robot) -> None:
    vary = {name: {"constant": 0.3} for name in ("q", "v", "a")}
    push = {"link": robot.link_names[-1], "force": [0.0, 5.0, 0.0]}
    tau = {"query": "inverse_dynamics", "options": {"wrenches": [push]}}
    result = robot.study(vary, {"tau": tau}).run()
    entries = np.full(2, 0.3)
    assert np.array_equal(result.tau, robot.inverse_dynamics(entries, entries, entries, wrenches=Wrench(**push)))
    push["links"] = push.pop("link")
    with pytest.raises(InvalidArgumentError, match=naming("outputs.tau.options.wrenches[0]", "'links'", "force")):
        robot.study(vary, {"tau": tau}).run()


def test_a_payload_of_nothing(robot: Robot) -> None:
    link = robot.link_names[-1]
    outputs = {"tau": {"query": "gravity_forces"}}
    fixed: dict[str, Any] = {"q": {"constant": 0.5}, f"payload.{link}.com": {"constant": [0.3, 0.0, 0.0]}}
    for mass in ({"linspace": [0.0, 2.0, 3], "dim": "mass"}, {"values": [0, 1, 2], "dim": "mass"}):
        tau = robot.study({**fixed, f"payload.{link}.mass": mass}, outputs).run().tau.values
        assert np.array_equal(tau[0], robot.gravity_forces([0.5, 0.5]))
        assert np.allclose(tau[2] - tau[1], tau[1] - tau[0], rtol=1e-12)
    constant = robot.study({**fixed, f"payload.{link}.mass": {"constant": 0.0}}, outputs).run().tau.values
    assert np.array_equal(constant, tau[0])
    with pytest.raises(InvalidArgumentError, match=naming("at least 0 kg", "-1")):
        robot.study({**fixed, f"payload.{link}.mass": {"values": [0, -1], "dim": "mass"}}, outputs).run()


def test_checks_of_selected_outputs(robot: Robot) -> None:
    vary = {"q": {"constant": 0.0}, "v": {"constant": 0.0}, "a": {"values": [[0.0, 0.0], [0.0, 1e9]], "dim": "n"}}
    last = robot.joint_names[-1]
    outputs_of_last = {"tau": {"query": "inverse_dynamics", "select": {"joint": [last]}, "reduce": ["max"]}}
    result = robot.study(vary, outputs_of_last, check=["effort"]).run()
    assert json.loads(result.attrs["failures"]) == {"effort": 1}
    assert json.loads(result.attrs["first_failures"]) == {"effort": 1}
    kinetic = {"e": {"query": "energy", "output": "kinetic", "reduce": ["max"]}}
    for check, outputs, variation, word in (
        ("effort", kinetic, vary, "inverse_dynamics"),
        ("velocity", {"g": {"query": "gravity_forces"}}, {"q": {"constant": 0.0}}, "'v'"),
    ):
        with pytest.raises(InvalidArgumentError, match=word):
            robot.study(
                {k: x for k, x in variation.items() if outputs is not kinetic or k != "a"}, outputs, check=[check]
            ).run()


def test_numbers_of_the_fingerprint_are_exact(robot: Robot) -> None:
    link = robot.link_names[-1]
    masses = np.linspace(1.0, 2.0, 2000)
    other = masses.copy()
    other[1000] = np.nextafter(other[1000], 2.0)
    outputs = {"tau": {"query": "gravity_forces", "reduce": ["max"]}}
    studies = [
        robot.study({"q": {"constant": 0.0}, "overlay": {"values": Overlay(links={link: Inertial(mass=x)})}}, outputs)
        for x in (masses, masses.copy(), other)
    ]
    assert studies[0].fingerprint == studies[1].fingerprint != studies[2].fingerprint


def test_a_store_that_was_not_ready_is_made_again(robot: Robot, tmp_path: Path) -> None:
    import zarr

    vary = {"q": {"uniform": [-1.0, 1.0]}}
    outputs = {"tau": {"query": "gravity_forces"}, "top": {"query": "gravity_forces", "reduce": ["max"]}}
    study = robot.study(vary, outputs, samples={"sample": {"count": 100}})
    create = zarr.Group.create_array

    def fails(group: Any, name: str, **how: Any) -> Any:
        if name == "tau":
            raise KeyboardInterrupt
        return create(group, name, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr.Group, "create_array", fails)
        with pytest.raises(KeyboardInterrupt):
            study.run(tmp_path / "s", chunks=1)
    assert study.run(tmp_path / "s").identical(study.run())


def test_entries_robots_and_recordings(robot: Robot, tmp_path: Path) -> None:
    v = np.random.default_rng(0).normal(size=(20, 2))
    np.savez(tmp_path / "motion.npz", t=np.arange(20) * 0.1, q=0.1 * v, v=v)
    file = str(tmp_path / "motion.npz")
    (tmp_path / "text.npz").write_text("no archive")
    for name, target in (("text.npz", "q"), ("motion.npz", "tau")):
        with pytest.raises(InvalidArgumentError, match=name):
            Plan(robot, {target: Vary(recording=str(tmp_path / name))}, {}, [])
    last = robot.link_names[-1]
    vary = {name: Vary(recording=file) for name in ("q", "v", "a")}
    vary |= {f"link.{last}.mass": Vary(uniform=(0.9, 1.1), relative=True, dim="sample")}
    vary |= {f"q.{robot.joint_names[0]}": Vary(values=[0.0, 1.0], dim="turn")}
    plan = Plan(robot, vary, {"sample": Samples(4)}, [])
    assert plan.shape == (2, 20, 4)
    state = plan.state(1 * 80 + 7 * 4 + 2)
    assert state["q"].tolist() == [1.0, 0.1 * v[7, 1]]
    assert np.allclose(state["a"], np.gradient(v, 0.1, axis=0)[7])
    mass = robot.tree.inertia[-1].mass
    assert 0.9 * mass < float(state["overlay"].links[last].mass) < 1.1 * mass
    overlays = robot.overlay_of([robot, robot.overlaid(state["overlay"])])
    plan_of_robots = Plan(robot, {"q": Vary(constant=0.5), "overlay": Vary(values=overlays)}, {}, [])
    assert plan_of_robots.dims == ("robot",)
    block = plan_of_robots.block([slice(0, 2)])
    forces = robot.gravity_forces(**block)
    assert np.array_equal(forces[0], robot.gravity_forces([0.5, 0.5]))
    assert np.array_equal(forces[1], robot.overlaid(state["overlay"]).gravity_forces([0.5, 0.5]))


@pytest.mark.slow
def test_a_cluster_loses_a_worker(study: Study) -> None:
    distributed = pytest.importorskip("distributed")
    want = study.run(chunks=1)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        with distributed.Client(cluster, set_as_default=False) as client:
            pids = list(client.run(os.getpid).values())
        killed: list[int] = []

        def kill(_: float) -> None:
            if not killed:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)

        assert want.identical(study.run(chunks=1, scheduler=cluster.scheduler_address, progress=kill))
    assert killed


def test_a_payload_without_effect_on_any_query_is_an_error(robot: Robot) -> None:
    payload = {f"payload.{robot.link_names[-1]}.mass": {"values": [1.0, 2.0]}}
    poses = {"query": "link_poses", "output": "position"}
    with pytest.raises(
        InvalidArgumentError, match=naming("no query of the study (link_poses) has the input 'overlay'")
    ):
        robot.study({"q": {"constant": 0.5}, **payload}, {"place": poses}).explain()
    torques = {"query": "gravity_forces"}
    result = robot.study({"q": {"constant": 0.5}, **payload}, {"tau": torques, "place": poses}).run()
    assert np.ptp(result.tau.values, axis=0).max() > 1.0


def _torques(robot: Robot, count: int, **variations: Any) -> Study:
    vary = {name: {"uniform": [-1.0, 1.0]} for name in ("q", "v", "a")}
    outputs = {"tau": {"query": "inverse_dynamics", "reduce": ["min", "max", "absmax", "mean", "rms"]}}
    study_of_torques: Study = robot.study(
        {**vary, **variations}, outputs, samples={"sample": {"count": count, "seed": 2}}
    )
    return study_of_torques


@pytest.mark.parametrize("count", [70_001, 8192])
def test_compiled_passes_against_plain_calls(robot: Robot, count: int) -> None:
    study = _torques(robot, count)
    assert study._kernel is not None
    tiles: list[Any] = []
    answers = study._tile_answers
    study._tile_answers = lambda slices: (tiles.append(slices), answers(slices))[1]  # type: ignore[method-assign]
    result = study.run(workers=2, chunks=1)
    assert [part[0].stop - part[0].start for part in tiles] == ([1] if count % 8 else [])  # Python computes the rest
    states = study.plan.block([slice(0, count)])
    tau = robot.inverse_dynamics(**states)
    assert np.array_equal(result.tau_min, tau.min(0))
    assert np.array_equal(result.tau_max, tau.max(0))
    assert np.array_equal(result.tau_min_index, tau.argmin(0))
    assert np.array_equal(result.tau_absmax_index, np.abs(tau).argmax(0))
    assert np.allclose(result.tau_mean, tau.mean(0), rtol=1e-12, atol=1e-14)  # rounding of the sums
    assert np.allclose(result.tau_rms, np.sqrt((tau**2).mean(0)), rtol=1e-13)


def test_a_compiled_pass_leaves_states_that_are_not_finite_to_python(robot: Robot) -> None:
    v = np.linspace(-1.0, 1.0, 10_000)
    v[5000] = np.inf
    vary = {"q": {"constant": 0.3}, "a": {"constant": 0.0}, "v": {"values": v.tolist(), "dim": "n"}}
    study = robot.study(vary, {"tau": {"query": "inverse_dynamics", "reduce": ["max", "mean"]}})
    assert study._kernel is not None
    result = study.run()
    tau = robot.inverse_dynamics([0.3, 0.3], np.delete(v, 5000)[:, None] * np.ones(2), np.zeros(2))
    assert json.loads(result.attrs["first_failures"]) == {"not finite": 5000}
    assert np.array_equal(result.tau_max, tau.max(0))
    assert np.allclose(result.tau_mean, tau.mean(0), rtol=1e-12, atol=1e-14)


def test_reduced_numbers() -> None:
    rng = np.random.default_rng(0)
    for states, entries in ((4096, 8), (23, 2), (5, 3), (64, 1), (0, 2)):
        for x in (rng.normal(size=(states, entries)), rng.integers(-2, 3, (states, entries)).astype(float)):
            low, high, *sums, first, last = reduced(x)
            assert np.array_equal(low, x.min(0, initial=np.inf))
            assert np.array_equal(high, x.max(0, initial=-np.inf))
            assert np.allclose(sums, [x.sum(0), (x**2).sum(0), (np.abs(x) ** 3).sum(0)], rtol=1e-13, atol=1e-13)
            if states:
                assert np.array_equal([first, last], [x.argmin(0), x.argmax(0)])  # of equal ones the first


def test_explain_computes_one_chunk_once(robot: Robot) -> None:
    study = _torques(robot, 200_000)
    tasks_run: list[Any] = []
    task = study.task
    study.task = lambda *arguments: (tasks_run.append(arguments), task(*arguments))[1]  # type: ignore[method-assign]
    study.explain()
    study.explain(workers=1)
    assert tasks_run == [(0, 0, 1)]
    tasks_run.clear()
    study.run(chunks=1, workers=1)
    assert tasks_run == [(0, k, k + 1) for k in range(4)]


def test_explain_computes_few_of_states_that_take_long(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "PILOT_S", 0.0)  # every state takes long
    study = _torques(robot, 200_000)
    counts = _counted(study)
    assert study.explain(workers=2).states_left == 200_000
    assert counts == [8, 8]


def test_explain_of_a_store(robot: Robot, tmp_path: Path) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    study = _torques(robot, 200_000)
    study._state_seconds = np.array([1e-7, 1e-7])  # as on an idle machine, where one task computes all chunks
    new = study.explain(store=tmp_path / "s")
    assert (new.states_left, new.chunks_left, new.tasks) == (200_000, 4, 1)
    assert not (tmp_path / "s").exists()
    with pytest.raises(KeyboardInterrupt):
        study.run(tmp_path / "s", chunks=1, workers=1, progress=interrupt)
    estimate = study.explain(workers=1, store=tmp_path / "s")
    assert (estimate.states_left, estimate.chunks, estimate.chunks_left, estimate.tasks) == (134_464, 4, 3, 4)
    assert np.isclose(estimate.seconds / study.explain(workers=1).seconds, 134_464 / 200_000)
    study.run(tmp_path / "s")
    reopened = _torques(robot, 200_000)
    counts = _counted(reopened)
    assert (reopened.explain(store=tmp_path / "s").seconds, counts) == (0.0, [])  # nothing is computed
    with pytest.raises(FailedPreconditionError, match=naming("another robot or study")):
        _torques(robot, 100).explain(store=tmp_path / "s")


def _counted(study: Study) -> list[int]:
    """Returns a list that gets the number of states of each tile that the study computes."""
    counts: list[int] = []
    tile, task = study._tile_answers, study.task

    def counted(slices: Any) -> Any:
        counts.append(int(np.prod([part.stop - part.start for part in slices])))
        return tile(slices)

    study._tile_answers = counted  # type: ignore[method-assign]
    study.task = lambda *arguments: (counts.append(-1), task(*arguments))[1]  # type: ignore[method-assign]
    return counts


def test_one_run_at_a_time(robot: Robot, tmp_path: Path) -> None:
    study = _torques(robot, 100)
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(1, flush=True)"
    (tmp_path / "s").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; sys.stdin.read()", str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(FailedPreconditionError, match=naming("is written by another run")):
            study.run(tmp_path / "s")
        other.kill()
    assert study.run(tmp_path / "s").identical(study.run())  # the lock ended with its process
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPreconditionError, match=naming("cannot be written (File exists)")):
        study.run(tmp_path / "file")


def test_a_store_begun_with_other_versions(robot: Robot, tmp_path: Path) -> None:
    study = _torques(robot, 200_000)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(tmp_path / "s", chunks=1, workers=1, progress=interrupt)
    other = _torques(robot, 200_000)
    other.__dict__["made_with"] = "dyn_service 0.0.1, another processor"
    with pytest.raises(FailedPreconditionError, match=naming("was begun with dyn_service")):
        other.run(tmp_path / "s")
    want = study.run(tmp_path / "s")
    assert "llvmlite" in want.attrs["made_with"]
    assert want.identical(other.run(tmp_path / "s"))  # a complete store is read anywhere


def test_a_study_for_another_machine_needs_no_file(robot: Robot, tmp_path: Path) -> None:
    v = np.random.default_rng(0).normal(size=(20, 2))
    np.savez(tmp_path / "motion.npz", t=np.arange(20) * 0.1, q=0.1 * v, v=v)
    vary: dict[str, Any] = {name: {"recording": str(tmp_path / "motion.npz")} for name in ("q", "v", "a")}
    mass = np.array([1.0, 2.0])
    vary["overlay"] = {"values": Overlay(links={robot.link_names[-1]: Inertial(mass=mass)}), "dim": "mass"}
    study = robot.study(vary, {"tau": {"query": "inverse_dynamics", "reduce": ["max"]}})
    content = pickle.dumps((robot, study.specification))
    (tmp_path / "motion.npz").unlink()
    expected = (study.fingerprint, study.made_with)
    remote_results, local_results = _remote(content, expected, 0, 0, 1), study.task(0, 0, 1)
    assert all(np.array_equal(remote_results[name], local_results[name]) for name in local_results if name != "states")
    with pytest.raises(FailedPreconditionError, match=naming("a worker has")):
        _remote(content, (study.fingerprint, "another processor"), 0, 0, 1)


def test_repeated_names(robot: Robot) -> None:
    vary = {"q": {"uniform": [-1.0, 1.0]}}
    samples = {"sample": {"count": 8}}
    tau = {"query": "gravity_forces", "reduce": ["max", "min", "max"]}
    with pytest.raises(InvalidArgumentError, match=naming("outputs.tau.reduce: has 'max' twice")):
        robot.study(vary, {"tau": tau}, samples=samples)
    with pytest.raises(InvalidArgumentError, match=naming("keep: has 'sample' twice")):
        robot.study(vary, {"tau": {**tau, "reduce": ["max"]}}, samples=samples, keep=["sample", "sample"])


def test_rotations_of_a_floating_base_are_uniform() -> None:
    robot = Robot.from_urdf("urdf/double_pendulum.urdf", root="floating")
    vary = {"q": {"uniform": [[-1.0] * robot.nq, [1.0] * robot.nq]}}
    q = Plan(robot, {"q": Vary(uniform=tuple(vary["q"]["uniform"]))}, {"sample": Samples(4096)}, []).state(0)["q"]
    assert np.isclose(np.linalg.norm(q[3:7]), 1.0)
    plan = Plan(robot, {"q": Vary(uniform=tuple(vary["q"]["uniform"]))}, {"sample": Samples(4096)}, [])
    x = plan.block([slice(0, 4096)])["q"]
    assert np.allclose(x[:, 3:7].T @ x[:, 3:7] / 4096, np.eye(4) / 4, atol=0.01)
    assert np.abs(x[:, :3]).max() < 1.0
    assert np.ptp(x[:, 7:], axis=0).min() > 1.9
    gravity = {"g": {"query": "gravity_forces", "reduce": ["max"]}}
    samples = {"sample": {"count": 8, "sampler": "random"}}
    assert np.isfinite(robot.study(vary, gravity, samples=samples).run(chunks=1).g_max).all()  # without a warning


def test_labels_of_indices_and_histograms(robot: Robot) -> None:
    study = robot.study(
        {"q": {"uniform": [-1.0, 1.0]}},
        {"g": {"query": "gravity_forces", "reduce": ["max", "histogram"], "range": [-5.0, 5.0], "bins": 4}},
        samples={"sample": {"count": 64}},
    )
    result = study.run()
    assert result.g_max.attrs["units"] == "N m | N"
    assert result.g_max_index.attrs["units"] == result.g_histogram.attrs["units"] == "1"
    assert (result.g_histogram.attrs["range"], result.g_histogram.attrs["range_units"]) == ("[-5.0, 5.0]", "N m | N")
    assert result.g_histogram.sizes["g_bin"] == 6
    with pytest.raises(InvalidArgumentError, match="first < last"):
        robot.study(
            {"q": {"constant": 0.0}}, {"g": {"query": "gravity_forces", "reduce": ["histogram"], "range": [1.0, 1.0]}}
        ).run()


def test_an_unknown_form_of_sobols_sequence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.stats import qmc

    class Other(qmc.Sobol):  # type: ignore[misc]
        def random(self, n: int = 1, **_: Any) -> Any:
            return super().random(n)[::-1]

    monkeypatch.setattr(qmc, "Sobol", Other)
    with pytest.raises(FailedPreconditionError, match="unknown form"):
        Sampler(Samples(16), 2).entries(slice(0, 2))(0, 1)


def test_messages_of_a_bag_with_joints_in_another_order(robot: Robot, tmp_path: Path) -> None:
    pytest.importorskip("mcap_ros2")
    from dyn_service.graph.bags.writer import BagWriter
    from dyn_service.messages.sensor_msgs import JointState

    first, second = robot.joint_names
    with BagWriter(tmp_path / "motion.mcap") as bag:
        for k, names in enumerate(([first, second], [second, first], ["other", second, first])):
            values = [{first: 1.0, second: 2.0, "other": 9.0}[name] + k for name in names]
            bag.write("/joint_states", JointState(name=names, position=values), k * 10**9)
    motion = recording(robot, tmp_path / "motion.mcap")
    assert motion["q"].tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert motion["t"].tolist() == [0.0, 1.0, 2.0]


def test_a_state_that_a_bag_has_twice_counts_once(robot: Robot, tmp_path: Path) -> None:
    """A plant in lockstep publishes it again while its time stands still."""
    pytest.importorskip("mcap_ros2")
    from dyn_service.graph.bags.writer import BagWriter
    from dyn_service.messages.builtin_interfaces import Time
    from dyn_service.messages.sensor_msgs import JointState
    from dyn_service.messages.std_msgs import Header

    def positions(file: str, rows: list[tuple[float, float]]) -> Any:
        with BagWriter(tmp_path / file) as bag:
            for k, (stamp, q) in enumerate(rows):
                state = JointState(Header(Time.from_seconds(stamp)), list(robot.joint_names), [q, 0.0])
                bag.write("/joint_states", state, k * 10**9)
        return recording(robot, tmp_path / file)["q"][:, 0].tolist()

    rows = [(0.0, 1.0), (0.0, 1.0), (0.1, 1.0), (0.2, 2.0), (0.2, 2.0), (0.2, 2.0)]
    assert positions("stamped.mcap", rows) == [1.0, 1.0, 2.0]
    assert positions("unstamped.mcap", [(0.0, q) for _, q in rows]) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    with pytest.raises(InvalidArgumentError, match=r"message 1 .* 0.100000 s after 0.100000 s"):
        positions("twice.mcap", [(0.1, 1.0), (0.1, 2.0), (0.2, 2.0)])


def test_a_bag_has_the_times_of_its_stamps_and_the_rows_under_command(
    robot: Robot, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mcap_ros2")
    from dyn_service.graph.bags.writer import BagWriter
    from dyn_service.messages.builtin_interfaces import Time
    from dyn_service.messages.dyn_service_msgs import PlantState
    from dyn_service.messages.sensor_msgs import JointState
    from dyn_service.messages.std_msgs import Header

    names = robot.joint_names
    modes = ["braked", "active", "braked", *["active"] * 5, "stopped", "stopped"]

    def motion(file: str, stamps: list[float], states: bool) -> dict[str, Any]:
        with BagWriter(tmp_path / file) as bag:
            for k, (stamp, mode) in enumerate(zip(stamps, modes, strict=True)):
                came = 10**9 + k * 10**7 + (0, 3, 1)[k % 3] * 10**6  # messages wait up to 3 ms
                numbers: Any = {"name": names, "position": [float(k)] * 2, "velocity": [1.0 * k] * 2}
                numbers["effort"] = [float(k * k)] * 2
                if states and k != 4:  # a lost message: the mode lasts
                    safety: Any = {"cause": "", "since": 0.0, "epoch": 0, "armable": True, "command_seq": -1}
                    safety |= {"command_delay": 0.0, "fingerprint": "", "mode": mode, **numbers, "name": tuple(names)}
                    bag.write("/arm/plant_state", PlantState(session=1, seq=k, stamp=stamp, **safety), came)
                bag.write("/arm/joint_states", JointState(Header(Time.from_seconds(stamp)), **numbers), came)
        return recording(robot, tmp_path / file, "/arm/joint_states")

    stamps = [0.01 * k for k in range(10)]
    commanded = motion("commanded.mcap", stamps, states=True)
    assert not caplog.records
    assert commanded["q"][:, 0].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
    np.testing.assert_allclose(commanded["t"], [0.0, 0.01, 0.02, 0.03, 0.04], rtol=1e-12)  # stamps in whole ns
    assert commanded["tau"][:, 1].tolist() == [16.0, 20.5, 30.5, 42.5, 49.0]  # as of a report
    np.testing.assert_allclose(commanded["a"], 100.0, rtol=1e-9)  # differences of v over those of t
    whole = motion("whole.mcap", stamps, states=False)
    assert whole["tau"][:, 0].tolist() == [float(k * k) for k in range(10)]
    np.testing.assert_allclose(whole["t"], stamps, rtol=1e-12)
    assert "'/arm/plant_state' has no modes" in caplog.text
    unstamped = motion("unstamped.mcap", [0.0] * 10, states=True)
    np.testing.assert_allclose(unstamped["t"][:3], [0.0, 0.013, 0.021], rtol=1e-12)
    assert "no stamps: t is the time of arrival" in caplog.text
    with pytest.raises(InvalidArgumentError, match=r"message 6 .* the stamp 0.010000 s after 0.060000 s"):
        motion("twice.mcap", [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.01, 0.02, 0.03, 0.04], states=True)


def test_wrong_numbers_of_a_robot_name_their_key(robot: Robot) -> None:
    link, joint = robot.link_names[-1], robot.joint_names[0]
    payload, friction = f"payload.{link}.mass", f"joint.{joint}.friction"
    bodies = Overlay(links={link: Inertial(mass=np.array([1.0, -2.0]))})
    for target, variation, path, words in (
        (payload, {"values": [1.0, 2.0, -3.0]}, f"{payload}.values[2]", ("at least 0 kg", "-3")),
        (payload, {"values": [1.0, np.nan]}, f"{payload}.values[1]", ("nan",)),
        (payload, {"linspace": [1.0, -1.0, 3]}, f"{payload}.linspace", ("entry 2 along 'payload", "-1")),
        (payload, {"uniform": [-1.0, 1.0]}, f"{payload}.uniform[0]", ("at least 0 kg", "-1")),
        (payload, {"uniform": [2.0, 1.0]}, f"{payload}.uniform", ("the first at most the second", "2 and 1")),
        (payload, {"normal": [1.0, -0.1]}, f"{payload}.normal", ("the second at least 0", "-0.1")),
        (payload, {"normal": [1.0, 0.5]}, f"{payload}.normal", ("entry", "along 'sample'", "at least 0 kg", "-")),
        (friction, {"normal": [0.1, 1.0]}, f"{friction}.normal", ("entry", "at least 0")),
        (f"link.{link}.mass", {"values": [1.0, 0.0], "relative": True}, f"link.{link}.mass.values[1]", ("positive",)),
        (f"payload.{link}.inertia", {"values": [np.eye(3), -np.eye(3)]}, f"payload.{link}.inertia.values[1]", ("-1",)),
        ("gravity", {"values": [[0, 0, -9.81], [0, 0, np.inf]]}, "gravity.values[1]", ("finite", "inf")),
        ("overlay", {"values": bodies}, "overlay", (f"links.{link}.mass", "-2")),
    ):
        study = {"q": {"constant": 0.5}, "v": {"constant": 1.0}, "a": {"constant": 0.0}, target: variation}
        samples = {"sample": {"count": 5000}} if {*variation} & {"uniform", "normal"} else {}
        with pytest.raises(DynError, match=naming(*words)) as refusal:
            robot.study(study, {"tau": {"query": "inverse_dynamics", "reduce": ["max"]}}, samples=samples).explain()
        assert refusal.value.path == f"vary.{path}", str(refusal.value)


def test_wrong_samples_that_are_not_kept_name_their_key(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "KEPT_BYTES", 0)
    mass = f"payload.{robot.link_names[-1]}.mass"
    vary = {"q": {"constant": 0.5}, mass: {"normal": [1.0, 0.25]}}
    study = robot.study(vary, {"tau": {"query": "gravity_forces"}}, samples={"sample": {"count": 70_000}})
    with pytest.raises(InvalidArgumentError, match=naming(f"vary.{mass}.normal: entry", "at least 0 kg")) as refusal:
        study.run()
    entry = int(str(refusal.value).split("entry ")[1].split()[0])
    monkeypatch.undo()
    assert study.plan.quantities[0].values_at(entry, entry + 1)[0] < 0.0  # the number that the error names


def test_outputs_with_other_entries_have_their_own_dimension(robot: Robot) -> None:
    first, second = robot.joint_names
    first_output = {"query": "gravity_forces", "select": {"joint": [first]}, "reduce": ["max"]}
    two = {"query": "inverse_dynamics", "select": {"joint": [second]}}
    vary = {"q": {"constant": 0.5}, "v": {"constant": 0.0}, "a": {"constant": 1e9}}
    result = robot.study(vary, {"one": first_output, "two": two}, check=["effort"]).run()
    assert (result.one_max.dims, list(result.indexes["joint"])) == (("joint",), [first])
    assert (result.two.dims, list(result.indexes["two_joint"])) == (("two_joint",), [second])
    assert json.loads(result.attrs["failures"]) == {"effort": 1}
    for outputs, path in (
        ({"one": {**first_output, "select": {"joint": []}}}, "outputs.one.select.joint"),
        ({"one": {**first_output, "select": {"joint": [first, first]}}}, "outputs.one.select.joint"),
        ({"one": first_output, "one_max": two}, "outputs.one_max"),
        ({"joint": two}, "outputs.joint"),
    ):
        with pytest.raises(InvalidArgumentError) as refusal:
            robot.study(vary, {"all": {"query": "inverse_dynamics"}, **outputs}).run()
        assert refusal.value.path == path, str(refusal.value)


def test_options_of_python(robot: Robot) -> None:
    vary = {name: {"constant": 0.3} for name in ("q", "v", "a")}
    push = Wrench(robot.link_names[-1], force=np.array([0.0, 5.0, 0.0]))
    options = {"wrenches": [push], "gravity": np.array([0.0, 0.0, -1.6])}
    result = robot.study(vary, {"tau": {"query": "inverse_dynamics", "options": options}}).run()
    entries = np.full(2, 0.3)
    assert np.array_equal(result.tau, robot.inverse_dynamics(entries, entries, entries, **options))


def test_a_full_disk_and_a_complete_store(robot: Robot, tmp_path: Path) -> None:
    import resource

    vary, samples = {"q": {"uniform": [-1.0, 1.0]}}, {"sample": {"count": 70_000}}
    study = robot.study(vary, {"g": {"query": "gravity_forces"}}, samples=samples)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # the states do not fit
    try:
        with pytest.raises(FailedPreconditionError, match=naming("cannot be written", "run again")):
            study.run(tmp_path / "s", chunks=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert study.run(tmp_path / "s").identical(study.run())
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "s").rglob("*")}
    reopened = robot.study(vary, {"g": {"query": "gravity_forces"}}, samples=samples)
    reopened.explain(store=tmp_path / "s")
    assert reopened.run(tmp_path / "s").identical(study.run())
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "s").rglob("*")} == files  # nothing is written
    assert reopened.plan.quantities[0].points is not None
    assert reopened.plan.quantities[0].points.cache_info().currsize == 0  # no samples, no SciPy
