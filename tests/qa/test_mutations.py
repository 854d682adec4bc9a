"""The mutation command: what it changes, that the change reaches the tests, and that nothing else is touched."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qa.mutations import report
from qa.mutations.explained import Explanation, explanations
from qa.mutations.operators import Mutant, mutants
from qa.mutations.plan import PACKAGE, ROOT, STAGES, plans
from qa.mutations.run import CAUGHT, SURVIVED, TIMED_OUT, Outcome
from tests.phrases import naming


def faults(source: str) -> set[str]:
    return {mutant.mutated for mutant in mutants(source, "m.py")}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("c = a + b", {"a - b", "a", "b"}),
        ("c = a @ b", {"b"}),
        ("c = -a", {"a"}),
        ("c = a.T @ b", {"b", "a"}),
        ("c = 0", {"c = 1"}),
        ("c = 2.5", {"c = 5.0"}),
        ("c = True", {"c = False"}),
        ("c = a < b", {"a <= b", "a >= b"}),
        ("c = a is None", {"a is not None"}),
        ("c = a and not b", {"a or not b", "a", "not b", "b"}),
        ("c = f(a, b)", {"f(b, a)", "f(a, a)", "a"}),
        ("c = f(a, gravity=g)", {"f(a)", "a"}),
        ("c = np.maximum(a)", {"np.minimum", "a"}),
        ("c = x.copy()", {"x"}),
        ("c = x[i]", {"x[i + 1]", "x[i - 1]"}),
        ("c = x[a:b]", {"x[:b]", "x[a:]"}),
        ("c = a if b else d", {"d if b else a", "a", "d"}),
        ("c = [x for x in y if x]", {"for x in y"}),
        ("x[i] = y", {"(removed)", "x[i + 1]", "x[i - 1]"}),
        ("x += y", {"(removed)", "x -= y"}),
        ("a.f()", {"(removed)", "a"}),
    ],
)
def test_faults(source: str, expected: set[str]) -> None:
    assert faults(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring with 1 + 1."""',
        "c: int = a",
        "def f(x: int = a) -> list[1]:\n    return x",
        "@g(1)\ndef f():\n    return x",
        "import a",
        "if TYPE_CHECKING:\n    x = 1",
        "raise ValueError(1 + 1)",
        'c = f"{a + 1}"',
        "message = a + b",
        "Blocks = Sequence[1]",
        'T = TypeVar("T", 1, 2)',
    ],
)
def test_left_alone(source: str) -> None:
    assert faults(source) == set()


@pytest.mark.parametrize("path", ["dynamics/spatial.py", "model/tree.py", "formulations/verification.py"])
def test_a_mutant_is_one_place_of_the_module(path: str) -> None:
    """Making the code of a mutant leaves the tree as it was, so that the next has one fault too."""
    source = (PACKAGE / path).read_text()
    all_mutants = mutants(source, path)
    tree_before = ast.dump(all_mutants[0]._tree)
    assert tree_before == ast.dump(ast.parse(source))
    sampled = all_mutants[:: max(7, len(all_mutants) // 40)]
    codes = {mutant.code(path) for mutant in sampled}
    assert len(codes) == len(sampled)
    assert compile(source, path, "exec") not in codes
    assert ast.dump(all_mutants[0]._tree) == tree_before
    keys = [(m.function, m.original, m.mutated, m.number) for m in all_mutants]
    assert len(set(keys)) == len(keys)


def test_every_module_has_its_tests() -> None:
    all_plans = plans([])
    assert len(all_plans) > 25
    for stages in STAGES.values():
        for stage in stages:
            assert (ROOT / stage).is_file(), stage
    with pytest.raises(ValueError, match=naming("'dinamics'", "dynamics, model")):
        plans(["dinamics"])


def test_explanations_say_what_and_why() -> None:
    modules = {plan.module for plan in plans([])}
    for entry in explanations():
        assert entry.module in modules


def test_explanation_matches_by_what_is_changed() -> None:
    mutant = Mutant("m.py", "f", "term", 7, "a + b", "a")
    assert Explanation("m.py", "f", "it is so", original="a + b", mutated="a").matches(mutant)
    assert Explanation("m.py", "f", "it is so", original="a + b").matches(mutant)
    assert not Explanation("m.py", "g", "it is so", original="a + b").matches(mutant)
    assert not Explanation("m.py", "f", "it is so", original="a + b", mutated="b").matches(mutant)


def test_page_counts_and_keeps_other_modules(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    mutant_list = [Mutant("m.py", "f", "term", k, "a + b", "a", k) for k in range(10)]
    kinds = [CAUGHT] * 6 + [TIMED_OUT] + [SURVIVED] * 3
    outcomes = [Outcome(mutant, kind, "", 0.1) for mutant, kind in zip(mutant_list, kinds, strict=True)]
    counts = report.outcome_counts(outcomes, {id(mutant_list[9]), id(mutant_list[0])})
    line = report.row("`m.py`", 10, 40, counts)
    assert line == "| `m.py` | 10 of 40 | 6 | 1 | 1 | 2 | 77.8 % |"
    report.write(page, {"m.py": (line, report.section("m.py", mutant_list[7:9]))})
    rows = report.read(page)
    rows["a.py"] = ("| `a.py` | 5 | 5 | 0 | 0 | 0 | 100.0 % |", report.section("a.py", []))
    report.write(page, rows)
    text = page.read_text()
    assert text.index("| `a.py`") < text.index("| `m.py`") < text.index("| all | 15 of 45 | 11 | 1 | 1 | 2 | 85.7 % |")
    assert text.count("  - a + b\n  + a\n") == 2
    assert report.read(page) == rows


def command(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "qa.mutations", *arguments]
    return subprocess.run(run, capture_output=True, text=True, check=False, cwd=cwd, timeout=240)


def test_the_page_and_the_explanations_name_modules_that_exist() -> None:
    rows = report.read(ROOT / "docs" / "mutations.md")
    missing_modules = {
        name for name in (*rows, *(entry.module for entry in explanations())) if not (PACKAGE / name).is_file()
    }
    assert not missing_modules, (
        f"rename or remove their rows in docs/mutations.md, their entries in explained.toml: {missing_modules}"
    )


def test_the_page_says_what_share_was_tried(tmp_path: Path) -> None:
    page, counts = tmp_path / "page.md", report.outcome_counts([], set())
    report.write(page, {"m.py": (report.row("`m.py`", 10, 40, counts), "")}, untried=["a.py", "b.py"])
    text = " ".join(page.read_text().split())
    assert "10 of 40 faults in these modules were tried, 25.0%" in text
    assert "2 further modules" in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each mutant is tried in a fork")
def test_command_catches_a_fault_and_touches_no_source(tmp_path: Path) -> None:
    """A lower limit kept on a continuous joint: the test that holds it turns red, the file stays."""
    source = (PACKAGE / "model" / "mimic.py").read_bytes()
    page, file = tmp_path / "page.md", "tests/model/test_tree.py"
    tests = f"{file}::test_limits_are_those_of_the_file_and_a_continuous_joint_has_no_range"
    selection = ("--part", "model/mimic.py", "--function", "bounds", "--containing", "->  limits._replace(upper")
    done = command(*selection, "--tests", tests, "--page", str(page), "--verbose", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    (verdict,) = (line for line in done.stdout.splitlines() if "->  limits._replace(upper" in line)
    assert verdict.startswith("caught")
    assert tests in verdict
    assert "| `model/mimic.py` | " in page.read_text()
    assert (PACKAGE / "model" / "mimic.py").read_bytes() == source


@pytest.mark.wide
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each mutant is tried in a fork")
def test_command_tells_of_a_survivor(tmp_path: Path) -> None:
    """Tests that do not look at limits let the same fault live."""
    selection = ("--part", "model/mimic.py", "--function", "bounds", "--containing", "->  limits")
    done = command(*selection, "--tests", "tests/qa/test_mutations_idle.py")
    assert done.returncode == 2
    assert "is red before anything is mutated" in done.stderr
    done = command(*selection, "--tests", "tests/parsing/urdf/test_warnings.py", "--page", str(tmp_path / "page.md"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("survived")
    fault = "  - limits if joint.moves.ranged else limits._replace(lower=-math.inf, upper=math.inf)\n  + limits\n"
    assert fault in (tmp_path / "page.md").read_text()


@pytest.mark.wide
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each mutant is tried in a fork")
def test_an_endless_loop_ends() -> None:
    """`branch` without its step walks for ever; the limit of processor time ends it, and that is red."""
    selection = "'--part', 'model/traversal.py', '--function', 'branch', '--containing', 'end += 1  ->  (removed)'"
    options = "'--tests', 'tests/model/test_tree.py', '--verbose', '--jobs', '1', '--trust'"
    source = (
        "import sys, qa.mutations.run as run\nrun.UNKNOWN_S = 3.0\n"
        f"from qa.mutations.__main__ import main\nsys.exit(main([{selection}, {options}]))"
    )
    run = [sys.executable, "-c", source]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("timed out")
    assert "| `model/traversal.py` | 1 of " in done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_told_to_end_it_leaves_no_mutant_behind() -> None:
    selection = ("--part", "model/traversal.py", "--function", "branch", "--containing", "end += 1  ->  (removed)")
    run = [sys.executable, "-m", "qa.mutations", *selection, "--tests", "tests/model/test_tree.py", "--jobs", "1"]
    with subprocess.Popen([*run, "--trust"], stderr=subprocess.PIPE, text=True, cwd=ROOT) as command:
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        # a trial leads a group of its own; libraries that are imported before may start something too
        while not (trials := [child for child in children.read_text().split() if group_of(child) == int(child)]):
            time.sleep(0.05)
        command.terminate()
        _, output = command.communicate(timeout=240)
    assert (command.returncode, output) == (130, "stopped: nothing is written\n")
    assert not any(Path(f"/proc/{child}").exists() for child in trials)


def group_of(process: str) -> int:
    try:
        return os.getpgid(int(process))
    except ProcessLookupError:
        return 0


def test_command_refuses_what_is_not_there() -> None:
    done = command("--part", "model/mimic.py", "--containing", "wings")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: there is no such mutant\n")
    done = command("--part", "wings")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: there is no part or module 'wings'; the parts are dynamics, ")
