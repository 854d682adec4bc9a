"""`dyn identify --payload LINK`: from motion, whose velocities are filtered positions, and from poses at rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dyn_service import Overlay
from tests.cli.test_command_line import here
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


def test_options_that_contradict(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, words in ((["--poses"], "--payload"), (["--payload", "panda_hand", "-o", "a.urdf"], "-o")):
        status, _, err = here(monkeypatch, capsys, "identify", str(folder / "poses.npz"), "panda", *options)
        assert status != 0
        assert words in err
