"""Stores of studies: a file that is damaged, cut or lost is computed again or is an error with its name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.studies.study import Study
from tests.phrases import naming

for _module in ("xarray", "dask.array", "zarr"):
    pytest.importorskip(_module, reason="the extra `studies` is not installed: pip install '.[studies]'")

VARY: dict[str, Any] = {"q": {"uniform": [-3.0, 3.0]}, "v": {"values": [[0.0, 0.0], [1.0, 2.0]], "dim": "speed"}}
OUTPUTS: dict[str, Any] = {
    "tau": {"query": "inverse_dynamics"},
    "top": {"query": "inverse_dynamics", "reduce": ["max", "rms", "histogram"], "range": [-50.0, 50.0], "bins": 3},
}
VARY["a"] = {"constant": 0.0}


@pytest.fixture(scope="module")
def study() -> Study:
    robot = Robot.from_urdf("urdf/double_pendulum.urdf")
    study_of_two: Study = robot.study(VARY, OUTPUTS, samples={"sample": {"count": 70_000}}, keep=["speed"])
    return study_of_two


@pytest.fixture(scope="module")
def complete(study: Study, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A complete store, and its results in memory."""
    store = tmp_path_factory.mktemp("stores") / "complete"
    return store, study.run(store, chunks=1, workers=1).load()


def _damages(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Yields a name and the content of a file after some damage; None: it is removed."""
    for place in (len(content) // 3, len(content) - 1):
        yield f"flip {place}", content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    yield "cut", content[: len(content) // 2]
    yield "remove", None


def _write(file: Path, content: bytes | None) -> None:
    file.unlink() if content is None else file.write_bytes(content)


def _outcome(study: Study, store: Path) -> tuple[str, Any]:
    """Returns the message of the error, or the results."""
    try:
        return "", study.run(store, chunks=1, workers=1).load()
    except FailedPreconditionError as error:
        return str(error), None


def test_no_damage_changes_a_number(study: Study, complete: tuple[Path, Any], tmp_path: Path) -> None:
    original, want = complete
    store = tmp_path / "store"
    shutil.copytree(original, store)
    files = sorted(file for file in store.rglob("*") if file.is_file())
    outcomes = {"the same": 0, "an error": 0}
    for file in files:
        content = file.read_bytes()
        states = file.is_relative_to(store / "tau" / "c") or file.is_relative_to(store / "code" / "c")
        for name, damaged in _damages(content):
            _write(file, damaged)
            place = f"{name} of {file.relative_to(store)}"
            message, result = _outcome(study, store)
            if result is not None:
                assert want.identical(result), place
                outcomes["the same"] += 1
                if not states:  # a code is not read by `run`
                    assert file.read_bytes() == content, place
                file.write_bytes(content)
                continue
            outcomes["an error"] += 1
            assert (str(file) if states else "its file zarr.json") in message, place
            if states:  # the remedy of the error
                file.unlink()
                assert want.identical(study.run(store, workers=1).load()), place
                assert file.read_bytes() == content, place
            else:
                assert file == store / "zarr.json", place
                shutil.rmtree(store)
                shutil.copytree(original, store)
    assert outcomes["an error"] >= 16, outcomes
    assert outcomes["the same"] > 80, outcomes


def test_readers_of_zarr_notice_damaged_chunks(complete: tuple[Path, Any], tmp_path: Path) -> None:
    import xarray as xr

    store = tmp_path / "store"
    shutil.copytree(complete[0], store)

    def loaded() -> Any:
        variables: dict[str, Any] = {}
        for group in (None, "result"):
            with xr.open_zarr(str(store), group=group, consolidated=False) as data:
                variables |= {f"{group} {name}": x for name, x in data.load().variables.items()}
        return variables

    want = loaded()
    chunks = [file for folder in ("tau", "code", "result") for file in (store / folder).rglob("c/**/*")]
    files = [file for file in chunks if file.is_file()]
    files += [file for file in (store / "result").rglob("c") if file.is_file()]
    assert len(files) >= 12
    for file in files:
        content = file.read_bytes()
        for _, damaged in _damages(content):
            _write(file, damaged)
            if damaged is None:  # Zarr fills what is missing: no number that a study can have
                for key, x in loaded().items():
                    if x.dtype.kind in "iuf" and not x.identical(want[key]):
                        other = x.values[~np.equal(x.values, want[key].values)]
                        fill = {"f": np.nan, "i": -1, "u": 255}[x.dtype.kind]
                        assert np.array_equal(other, np.full_like(other, fill), equal_nan=True), (key, file)
            else:
                with pytest.raises((ValueError, RuntimeError)):
                    loaded()
            file.write_bytes(content)


def test_damage_of_an_interrupted_run(study: Study, complete: tuple[Path, Any], tmp_path: Path) -> None:
    def interrupt(fraction: float) -> None:
        if fraction >= 0.5:
            raise KeyboardInterrupt

    store = tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        study.run(store, chunks=1, workers=1, progress=interrupt)
    assert study.explain(store=store).chunks_left == 2
    file = store / "partial" / "tasks" / "c" / "0" / "0" / "0"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert study.explain(store=store).chunks_left == 3
    assert file.read_bytes() == content[:-1]  # `explain` writes nothing
    other = Study(study.robot, study.specification)
    other.__dict__["made_with"] = "another processor"
    with pytest.raises(FailedPreconditionError, match=naming("was begun with")):
        other.run(store)
    assert complete[1].identical(study.run(store, workers=1).load())
    (store / "partial" / "tasks" / "zarr.json").unlink()
    assert study.explain(store=store).chunks_left == 4  # unknown until a run restores the file
    root = store / "zarr.json"
    root.write_text(root.read_text().replace("double", "single"))
    with pytest.raises(FailedPreconditionError, match=naming("zarr.json is missing, damaged")):
        study.explain(store=store)
    (store / "zarr.json").unlink()
    with pytest.raises(FailedPreconditionError, match=naming("is no store of a study")):
        study.run(store)


def test_a_chunk_without_a_finite_answer_is_kept(study: Study, tmp_path: Path) -> None:
    """Its numbers are those that Zarr gives for a missing chunk; a second run does not compute it again."""
    vary = VARY | {"v": {"values": [[0.0, 0.0], [np.nan, 0.0]], "dim": "speed"}}
    study = study.robot.study(vary, OUTPUTS, samples={"sample": {"count": 100}}, keep=["speed"])
    first = study.run(tmp_path / "s", chunks=1, workers=1).load()
    assert np.isnan(first.tau.values[1]).all()
    assert study.explain(store=tmp_path / "s").chunks_left == 0
    tasks: list[Any] = []
    task = study.task
    study.task = lambda *task_arguments: (tasks.append(task_arguments), task(*task_arguments))[1]  # type: ignore[method-assign]
    assert first.identical(study.run(tmp_path / "s").load())
    assert tasks == []
