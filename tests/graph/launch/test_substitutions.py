"""Substitutions in launch files: values, nesting, quoting, and each fault by its message."""

from pathlib import Path

import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.substitutions import Scope, substitute, truth

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
    ("text", "message"),
    [
        ("$(var y)", "variable 'y' is not set at this point; known here: blank, name, panda_file, x"),
        ("$(var nam)", "variable 'nam' is not set at this point; did you mean 'name'?"),
        ("$(env NOWHERE)", "environment variable 'NOWHERE' is not set and no default is given"),
        ("$(vax x)", "unknown substitution '$(vax ..)'; did you mean 'var'?"),
        ("$(eval 1 + 1)", "substitution '$(eval ..)' is refused: launch files run no code"),
        ("$(command ls)", "substitution '$(command ..)' is refused: launch files run no code"),
        ("$(var)", "substitution '$(var ..)' takes 1 to 2 arguments, got 0"),
        ("$(dirname x)", "substitution '$(dirname ..)' takes 0 arguments, got 1"),
        ("$()", "'$()' is empty: expected the name of a substitution"),
        ("a $(var x", "'$(var x': the bracket of the substitution is not closed"),
        ("$(var 'x)", "\"$(var 'x)\": a quote ' is not closed"),
        ("$(not maybe)", "'maybe' is not a condition: expected true or false"),
        ("$(find-pkg-share no_such_package)", "package 'no_such_package' is not installed"),
    ],
)
def test_fault(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        substitute(text, SCOPE)
    assert str(caught.value) == message


def test_nesting_has_an_end() -> None:
    with pytest.raises(InvalidArgumentError, match="nested more than 32 deep"):
        substitute("$(not " * 100 + "true" + ")" * 100, SCOPE)


@pytest.mark.parametrize(("text", "value"), [("True", True), (" yes ", True), ("0", False), ("OFF", False)])
def test_truth(text: str, value: bool) -> None:
    assert truth(text) is value
