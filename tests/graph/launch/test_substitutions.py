"""Substitutions in launch files: values, nesting, quoting, and each fault by its message."""

from pathlib import Path

import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.substitutions import Scope, substitute, truth
from tests.phrases import unnamed

SCOPE = Scope(
    Path("/a/b/c.launch.yaml"),
    {"x": "1", "name": "panda", "panda_file": "urdf/panda.urdf", "blank": "two words"},
    {"HOME": "/home/arm"},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("$(var x)", "1"),
        ("a$(var x)b$(var name)c", "a1bpandac"),
        ("$( var   x )", "1"),
        ("$(var $(var name)_file)", "urdf/panda.urdf"),
        ("$(var missing fallback)", "fallback"),
        ("$(var missing $(var x))", "1"),
        ("$(var missing 'two words')", "two words"),
        ('$(var missing "a)b")', "a)b"),
        ("$(env HOME)/x", "/home/arm/x"),
        ("$(env NOWHERE $(env HOME))", "/home/arm"),
        ("$(dirname)/../config", "/a/b/../config"),
        ("$(filename)", "c.launch.yaml"),
        ("$(not true)", "false"),
        ("$(and true $(equals $(var x) 1))", "true"),
        ("$(or false off)", "false"),
        ("$(string-join . https://docs ros $(var name))", "https://docs.ros.panda"),
        ("$(string-join '' a b)$(string-join ', ' a 'b c')", "aba, b c"),
        ("$(string-join - one)", "one"),
        ("$(path-join $(dirname) config $(var name).yaml)", "/a/b/config/panda.yaml"),
        ("$(path-join a/ 'b c' ../d)", "a/b c/../d"),
        ("$(path-join a /b)", "/b"),
        ("$(path-join '')", "."),
        (r"\$(var x)", "$(var x)"),
        ("cost: 5$", "cost: 5$"),
        ("(a) b", "(a) b"),
        ("it's", "it's"),
        ("$(var blank)", "two words"),
    ],
)
def test_value(text: str, expected: str) -> None:
    assert substitute(text, SCOPE) == expected


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("$(var y)", ["'y'", "panda_file"]),
        ("$(var nam)", ["'nam'", "'name'"]),
        ("$(env NOWHERE)", ["'NOWHERE'"]),
        ("$(vax x)", ["'$(vax ..)'", "'var'"]),
        ("$(eval 1 + 1)", ["'$(eval ..)'"]),
        ("$(command ls)", ["'$(command ..)'"]),
        ("$(var)", ["'$(var ..)'", "1", "2", "0"]),
        ("$(dirname x)", ["'$(dirname ..)'", "0", "1"]),
        ("$(string-join ,)", ["'$(string-join ..)'", "at least 2", "1"]),
        ("$(path-join)", ["'$(path-join ..)'", "at least 1", "0"]),
        ("$(not-equals a b)", ["'$(not-equals ..)'"]),
        ("$()", ["'$()'"]),
        ("a $(var x", ["'$(var x'"]),
        ("$(var 'x)", ["'x)\": a quote '"]),
        ("$(not maybe)", ["'maybe'"]),
        ("$(find-pkg-share no_such_package)", ["'no_such_package'"]),
    ],
)
def test_fault(text: str, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as excinfo:
        substitute(text, SCOPE)
    assert unnamed(excinfo.value, *values) == []


def test_nesting_has_an_end() -> None:
    with pytest.raises(InvalidArgumentError, match="nested more than 32 deep"):
        substitute("$(not " * 100 + "true" + ")" * 100, SCOPE)


@pytest.mark.parametrize(("text", "value"), [("True", True), (" yes ", True), ("0", False), ("OFF", False)])
def test_truth(text: str, value: bool) -> None:
    assert truth(text) is value
