"""Tries mutants, each in a process of its own.

The parent imports the libraries once and nothing of this package; each trial is a fork of it, so it starts in
milliseconds. In the fork a finder answers the import of the one module with the mutant's code, and pytest runs the
stages until a test turns red. The fork has a kernel cache of its own: empty where the mutant shapes kernels, since the
cache's key digests the sources on disk, which are unchanged; else a copy of a warm one, made of hard links, which the
store never writes through.

A trial ends at a limit of processor time, several times what the unmutated module needs: a fault may make a loop
endless. Time on the clock would depend on what else the machine does; it only ends what waits for ever.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from qa.mutations.operators import Mutant
from qa.mutations.plan import Plan

CAUGHT, TIMED_OUT, SURVIVED = "caught", "timed out", "survived"

MEMORY_BYTES = 6 << 30
"""Address space of a trial: a fault may fill memory without end. Libraries alone map 2 GiB."""

SLACK = 5.0
"""A stage may take this many times the processor's seconds it takes unmutated, and MIN_S at least."""
MIN_S = 20.0
UNKNOWN_S = 300.0
"""Where that was not measured."""
PATIENCE_S = 1200.0
"""On the clock, of one stage: it waits for something that does not come."""

LIBRARIES = (
    "casadi",
    "defusedxml.ElementTree",
    "hypothesis",
    "llvmlite.binding",
    "msgpack",
    "msgspec",
    "mujoco",
    "numpy",
    "pinocchio",
    "pytest",
    "scipy.integrate",
    "scipy.linalg",
    "scipy.sparse",
    "urchin",
    "yourdfpy",
    "zmq",
)
"""Imported once, before the forks: what the tests import besides this package."""


# Named ones alone: looking for all that are installed takes longer than most tests.
_PLUGINS = ("-p", "_hypothesis_pytestplugin", "-p", "pytest_timeout", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Outcome:
    """kind: CAUGHT, TIMED_OUT or SURVIVED. failing_test: the test that turned red, or the stage that took too long.

    used_s: seconds of a processor.
    """

    mutant: Mutant
    kind: str
    failing_test: str
    used_s: float


class BaselineError(Exception):
    """The tests are red before anything is mutated."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers the import of one module with given code."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self._name, self._path, self._code = name, path, code

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


class _FirstFailure:
    """A pytest plugin that notes the first test, or file, that turned red."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = f"{report.nodeid} (import)"


@dataclass
class _Trial:
    """A running fork. deadline_s moves with each stage it begins."""

    mutant: Mutant | None
    plan: Plan
    pid: int
    pipe: int
    folder: Path
    output: str = ""
    stage: int = 0
    deadline_s: float = float("inf")


class Runner:
    """Forks trials, `jobs` at a time. Use as a context: leaving it ends what runs and removes what was written."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._folder = Path(tempfile.mkdtemp(prefix="dyn-mutations-"))
        self._warm = self._folder / "warm"
        self._warm.mkdir(mode=0o700)
        self._running: dict[int, _Trial] = {}
        self._usual_s: dict[tuple[str, bool], float] = {}

    def __enter__(self) -> Runner:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        # As Ctrl-C, so that SIGTERM too removes the mutants.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        for name in LIBRARIES:
            with contextlib.suppress(ImportError):  # a test that needs it says so
                importlib.import_module(name)
        imported = [name for name in sys.modules if name == "dyn_service" or name.startswith("dyn_service.")]
        assert not imported, f"imported before the forks, so that no mutant of them can be: {imported}"
        return self

    def __exit__(self, *_: object) -> None:
        for trial in list(self._running.values()):
            self._end(trial)
        shutil.rmtree(self._folder, ignore_errors=True)

    def measure(self, plans: Iterable[Plan], progress: Callable[[str], None]) -> None:
        """Runs every stage unmutated: it must be green, and its time is what a trial's limit comes from.

        Raises:
            BaselineError: A stage is red; names the test.
        """
        for plan in plans:
            for stage in plan.stages:
                if (stage, plan.shaping) in self._usual_s:
                    continue
                progress(f"unmutated: {stage}")
                stage_plan = Plan(plan.module, (stage,), plan.shaping)
                ((_, kind, failing_test, used_s),) = self.run([(stage_plan, None)])
                if kind != SURVIVED:
                    raise BaselineError(f"{stage} is red before anything is mutated: {failing_test}")
                self._usual_s[stage, plan.shaping] = used_s

    def outcomes(self, work: Iterable[tuple[Plan, Mutant]]) -> Iterator[Outcome]:
        """The outcome of each mutant, as they end."""
        for mutant, kind, failing_test, used_s in self.run(work):
            assert mutant is not None
            yield Outcome(mutant, kind, failing_test, used_s)

    def run(self, work: Iterable[tuple[Plan, Mutant | None]]) -> Iterator[tuple[Mutant | None, str, str, float]]:
        """Trials of mutants, or of the module as it is; yields (mutant, kind, by, processor seconds)."""
        waiting = iter(work)
        exhausted = False
        while True:
            while not exhausted and len(self._running) < self._jobs:
                following = next(waiting, None)
                if following is None:
                    exhausted = True
                else:
                    self._fork(*following)
            if not self._running:
                return
            yield from self._ended()

    def _ended(self) -> Iterator[tuple[Mutant | None, str, str, float]]:
        ready, _, _ = select.select(list(self._running), [], [], 0.2)
        for pipe in ready:
            trial = self._running[pipe]
            chunk = os.read(pipe, 65536).decode()
            trial.output += chunk
            if not chunk:
                status, used_s = self._end(trial, kill=False)
                yield trial.mutant, *self._verdict(trial, status), used_s
            elif trial.output.count("stage\n") > trial.stage:
                trial.stage = trial.output.count("stage\n")
                trial.deadline_s = time.monotonic() + PATIENCE_S
        for trial in list(self._running.values()):
            if time.monotonic() > trial.deadline_s:
                _, used_s = self._end(trial)
                yield trial.mutant, TIMED_OUT, trial.plan.stages[trial.stage - 1], used_s

    @staticmethod
    def _verdict(trial: _Trial, status: int) -> tuple[str, str]:
        last = trial.output.splitlines()[-1] if trial.output else ""
        if last == "green":
            return SURVIVED, ""
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return TIMED_OUT, trial.plan.stages[trial.stage - 1]
        # A fork without output died of its mutant: a crash of native code, or no memory.
        return CAUGHT, last.removeprefix("red ") if last.startswith("red ") else "(the process died)"

    def _fork(self, plan: Plan, mutant: Mutant | None) -> None:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._try(plan, mutant, folder, writing)
        os.close(writing)
        self._running[reading] = _Trial(mutant, plan, pid, reading, folder)

    def _end(self, trial: _Trial, *, kill: bool = True) -> tuple[int, float]:
        """Waits for the fork, or ends it first, and what it started; its status and the processor's seconds it took."""
        if kill:
            with contextlib.suppress(ProcessLookupError):
                os.kill(trial.pid, signal.SIGKILL)
        _, status, usage = os.wait4(trial.pid, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(trial.pid, signal.SIGKILL)  # what it started and left behind
        os.close(trial.pipe)
        del self._running[trial.pipe]
        shutil.rmtree(trial.folder, ignore_errors=True)
        return status, usage.ru_utime + usage.ru_stime

    def _try(self, plan: Plan, mutant: Mutant | None, folder: Path, pipe: int) -> None:
        """In the fork; does not return."""
        try:
            os.setpgid(0, 0)  # Ctrl-C is the parent's
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # A mutant may allocate without an end, and the machine's memory is every other trial's too.
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ["DYN_SERVICE_CACHE"] = str(self._cache(plan, mutant, folder))
            if mutant is not None:
                sys.meta_path.insert(0, _Finder(plan.name, plan.path, mutant.code(str(plan.path))))
            os.write(pipe, self._stages(plan, folder, pipe).encode())
        except BaseException as error:
            os.write(pipe, f"red {type(error).__name__} outside of the tests: {error}".encode())
        finally:
            os._exit(0)

    def _cache(self, plan: Plan, mutant: Mutant | None, folder: Path) -> Path:
        if mutant is None and not plan.shaping:
            return self._warm
        place = folder / "kernels"
        place.mkdir(mode=0o700)
        # Kernels of the module as it is are right for a mutant that makes the same ones; hard links cost no copy.
        if not plan.shaping:
            for file in self._warm.iterdir():
                os.link(file, place / file.name)
        return place

    def _stages(self, plan: Plan, folder: Path, pipe: int) -> str:
        import hypothesis
        import pytest

        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        # The same examples for each mutant: a random one that is red anyway would count as caught.
        hypothesis.settings.register_profile("mutations", database=None, derandomize=True, deadline=None)
        hypothesis.settings.load_profile("mutations")
        for stage in plan.stages:
            os.write(pipe, b"stage\n")
            usual_s = self._usual_s.get((stage, plan.shaping))
            limit_s = UNKNOWN_S if usual_s is None else max(MIN_S, SLACK * usual_s)
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            # Processor time and not wall time: several trials share the cores, and a slow machine must not look like an
            # endless loop.
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + limit_s) + 1, hard))
            first = _FirstFailure()
            options = ["-x", "-q", "--tb=no", f"--basetemp={folder / 'tmp'}", *_PLUGINS]
            status = pytest.main([*options, stage], plugins=[first])
            if status != pytest.ExitCode.OK:
                return f"red {first.name or stage}"
        return "green"
