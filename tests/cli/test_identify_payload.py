"""`dyn identify --payload LINK`: from motion, whose velocities are filtered positions, and from poses at rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dyn_service import Overlay, Robot
from tests.cli.test_command_line import here
from tests.conftest import URDF
from tests.identification.test_payload import BRICK, carried, poses


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, motion, rest = tmp_path_factory.mktemp("payload"), carried(1, Overlay(BRICK), noise=0.2), poses(20, 2)
    np.savez(path / "motion.npz", t=motion["t"], q=motion["q"], tau=motion["tau"])
    np.savez(path / "poses.npz", t=np.arange(20.0), **rest)
    return path


@pytest.mark.parametrize(("file", "options"), [("motion", []), ("poses", ["--poses"])])
def test_it_prints_numbers_and_an_overlay(
    folder: Path, file: str, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["identify", str(folder / f"{file}.npz"), "panda", "--payload", "panda_hand", *options]
    status, out, _ = here(monkeypatch, capsys, *arguments)
    assert status == 0
    assert "mass" in out
    (line,) = (line for line in out.splitlines() if line.startswith("overlay: "))
    payload = yaml.safe_load(line)["overlay"]["payloads"][0]
    assert payload["mass"] == pytest.approx(1.0, abs=0.02)
    _, out, _ = here(monkeypatch, capsys, *arguments, "--json")
    content: dict[str, Any] = json.loads(out)
    assert content["payload"]["mass"] == pytest.approx(payload["mass"], rel=1e-4)
    assert len(content["standard_errors"]) == 10


def _run(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str, str]:
    return here(monkeypatch, capsys, "identify", str(path), "panda", "--payload", "panda_hand", *options)


@pytest.mark.parametrize("times", ["unsorted", "equal", "none", "none in csv"])
def test_poses_are_in_any_order(
    folder: Path, times: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = dict(np.load(folder / "poses.npz"))
    t = {"unsorted": rest.pop("t")[::-1], "equal": np.zeros(20)}.get(times)
    path = folder / f"any.{'csv' if times == 'none in csv' else 'npz'}"
    if path.suffix == ".csv":
        names = Robot.from_file(URDF / "panda.urdf").joint_names
        header = ",".join(f"{kind}.{name}" for kind in ("q", "tau") for name in names)
        np.savetxt(path, np.hstack([rest["q"], rest["tau"]]), delimiter=",", header=header, comments="")
    else:
        np.savez(path, **rest, **({} if t is None else {"t": t}))
    status, out, _ = _run(path, monkeypatch, capsys, "--poses", "--json")
    _, sorted_out, _ = _run(folder / "poses.npz", monkeypatch, capsys, "--poses", "--json")
    assert status == 0
    assert json.loads(out)["payload"]["mass"] == pytest.approx(json.loads(sorted_out)["payload"]["mass"])


def test_a_motion_is_no_poses_and_poses_are_no_motion(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = _run(folder / "motion.npz", monkeypatch, capsys, "--poses")
    assert (status != 0, "leave out --poses" in err) == (True, True)
    status, _, err = _run(folder / "poses.npz", monkeypatch, capsys)
    assert (status != 0, "--poses" in err, "20 rows in 19 s" in err) == (True, True, True)
    motion = dict(np.load(folder / "motion.npz"))
    coarse = {name: values[::25] for name, values in motion.items()}
    np.savez(folder / "coarse.npz", **coarse)
    status, _, err = _run(folder / "coarse.npz", monkeypatch, capsys)
    t = coarse["t"]
    assert (status != 0, "--poses" in err, f"{len(t)} rows in {t[-1] - t[0]:g} s" in err) == (True, True, True), err


def test_options_that_contradict(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, words in ((["--poses"], "--payload"), (["--payload", "panda_hand", "-o", "a.urdf"], "-o")):
        status, _, err = here(monkeypatch, capsys, "identify", str(folder / "poses.npz"), "panda", *options)
        assert status != 0
        assert words in err
