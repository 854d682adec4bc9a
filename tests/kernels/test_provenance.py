"""The key of a stored kernel depends on the code that compiles it, not on docstrings and comments."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest

from dyn_service.api.queries import QUERIES, Query
from dyn_service.kernels import store
from dyn_service.kernels.store import digest_of

SOURCE = '''"""A module."""

from dyn_service.dynamics import spatial

LIMIT = 3.0
NAMES = frozenset({"a", "b", "c"})


class Thing:
    """A thing."""

    size: float = 1.0

    def twice(self, x: float) -> float:
        """Twice x."""
        return 2.0 * x + sum(y for y in (1.0, 2.0))


def bare(x):
    return "said" + x


shifted = lambda x: "said first"
'''

WORDS = {
    "a comment": ("LIMIT = 3.0", "# why\nLIMIT = 3.0  # m"),
    "lines": ("class Thing", "\n\n\nclass Thing"),
    "the module's docstring": ("A module.", "A module that does more."),
    "a class's docstring": ("A thing.", "Not a thing."),
    "a method's docstring": ("Twice x.", "x and x."),
    "layout": ("return 2.0 * x + sum", "return 2.0 * x \\\n            + sum"),
}
CODE = {
    "a number": ("LIMIT = 3.0", "LIMIT = 3.5"),
    "a sign": ("size: float = 1.0", "size: float = -1.0"),
    "whole for real": ("LIMIT = 3.0", "LIMIT = 3"),
    "an operator": ("2.0 * x + sum", "2.0 * x - sum"),
    "a number in a comprehension": ("(1.0, 2.0)", "(1.0, 2.5)"),
    "a text that documents nothing": ('"said" + x', '"sad" + x'),
    "the text of a lambda": ('"said first"', '"sad first"'),
    "an import": ("import spatial", "import sweeps"),
    "a name": ("def bare(x)", "def bar(x)"),
    "one of a set": ('"c"})', '"d"})'),
}


PAIRS = {
    "a star": ("def f(*terms):\n    return sum(terms)\n", "def f(terms):\n    return sum(terms)\n"),
    "a text that a docstring equals": (
        'class A:\n    "xyz"\n    order = "xyz"\n',
        'class A:\n    "zyx"\n    order = "zyx"\n',
    ),
    "a name that a docstring equals": (
        'def f(a):\n    "sin"\n    return a["sin"]\n',
        'def f(a):\n    "cos"\n    return a["cos"]\n',
    ),
    "an argument that may be given by name": ("def f(*, a=1):\n    return a\n", "def f(*, b=1):\n    return b\n"),
    "what is given by place alone": ("def f(a, /):\n    return a\n", "def f(a):\n    return a\n"),
}


def digest(source: str) -> bytes:
    return digest_of(compile(source, "module.py", "exec"))[0]


@pytest.mark.parametrize("change", WORDS.values(), ids=WORDS)
def test_docstrings_and_comments_do_not_change_the_digest(change: tuple[str, str]) -> None:
    assert SOURCE.replace(*change) != SOURCE
    assert digest(SOURCE.replace(*change)) == digest(SOURCE)


@pytest.mark.parametrize("change", CODE.values(), ids=CODE)
def test_code_changes_the_digest(change: tuple[str, str]) -> None:
    assert SOURCE.replace(*change) != SOURCE
    assert digest(SOURCE.replace(*change)) != digest(SOURCE)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_similar_code_has_different_digests(pair: tuple[str, str]) -> None:
    assert digest(pair[0]) != digest(pair[1])


def test_versions_of_libraries_change_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    provenance = store.provenance.__wrapped__
    digest = provenance("dynamics.newton_euler")
    for library in ("llvmlite", "numpy"):
        with monkeypatch.context() as patched:
            patched.setattr(store, "version", lambda name, other=library: "0" if name == other else version(name))
            assert provenance("dynamics.newton_euler") != digest
    with monkeypatch.context() as patched:
        patched.setattr(sys.implementation, "cache_tag", "cpython-0")
        assert provenance("dynamics.newton_euler") != digest
    assert provenance("dynamics.newton_euler") == digest


def modules(function: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the modules that are read for the kernels of a function."""
    read: set[str] = set()
    module_of = store._module

    def noted(name: str) -> tuple[bytes, tuple[str, ...]]:
        read.add(name.removeprefix("dyn_service."))
        return module_of(name)

    with monkeypatch.context() as patched:
        patched.setattr(store, "_module", noted)
        store.provenance.__wrapped__(f"dynamics.{function.partition('.')[0]}", *store.COMPILER)
    return read


def test_modules_that_determine_a_kernel_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = modules("newton_euler.inverse_dynamics", monkeypatch)
    shaping = {"dynamics.newton_euler", "dynamics.sweeps", "dynamics.spatial", "dynamics.kinematics"}
    shaping |= {"kernels.frames", "kernels.graph", "kernels.lower", "kernels.trig", "kernels.certify", "kernels.jit"}
    shaping |= {"kernels.budget"}  # a stored refusal is invalid if the limit changes
    shaping |= {"model.tree", "model.composite", "model.joints", "model.inertia"}
    shaping |= {
        f"model.joints.{name}" for name in ("base", "axial", "multi_dof", "rotations")
    }  # a package of the package
    assert shaping <= read
    assert "model.building" not in read  # its results are in the tree's fingerprint


def test_a_package_is_followed_however_it_is_imported() -> None:
    """`description` imports the package, `multi_dof` modules in it."""
    assert "dyn_service.model.joints" in store._module("dyn_service.model.description")[1]
    assert "dyn_service.model.joints.rotations" in store._module("dyn_service.model.joints.multi_dof")[1]


@pytest.mark.parametrize("row", [row for row in QUERIES.values() if row.inputs], ids=lambda row: row.name)
def test_no_other_modules_are_read(row: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not other formulations, the table, the importer or the server, whose changes leave all kernels valid."""
    for function in row.kernels.values():
        read = modules(function, monkeypatch)
        assert {name.partition(".")[0] for name in read} == {"dynamics", "kernels", "model"}
        assert not read & {"dynamics.symbolic", "dynamics.structure", "kernels.direct", "kernels.library"}
        if function.partition(".")[0] in ("newton_euler", "mass_matrix"):
            assert not read & {"dynamics.hamilton", "dynamics.projected", "dynamics.body_frame", "dynamics.operators"}


def test_modules_have_different_digests() -> None:
    assert store.provenance("dynamics.newton_euler") != store.provenance("dynamics.hamilton")
