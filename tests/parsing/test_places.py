"""Words of messages and notes: places, quotes, lists, counts, to the letter."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.model.description import Joint, Limit, Link, Mimic, Note
from dyn_service.parsing.quantities import LONGEST_QUOTE, Place, counted, listed, quoted, shown_path, unused


def test_a_place_goes_inwards() -> None:
    whole = Place("a.urdf", line=1)
    link = whole.inside("link 'hand'", 7)
    assert link == Place("a.urdf", "link 'hand'", 7)
    assert link.inside("inertial") == Place("a.urdf", "link 'hand' inertial", 7)
    assert link.inside("inertial", 0) == Place("a.urdf", "link 'hand' inertial", 0)
    assert str(link.fault("is odd")) == "a.urdf:7: link 'hand': is odd"
    assert (link.fault("is odd").line, Place("a.urdf").fault("is odd").line) == (7, None)
    assert link.note("warning", "is odd") == Note("warning", "link 'hand'", "is odd", 7)
    assert whole.note("warning", "is odd") == Note("warning", "a.urdf", "is odd", 1)


@pytest.mark.parametrize("length", [LONGEST_QUOTE - 1, LONGEST_QUOTE, LONGEST_QUOTE + 1, 10 * LONGEST_QUOTE])
def test_quotes_have_a_longest_length(length: int) -> None:
    text = "x" * length
    quote = text if length <= LONGEST_QUOTE else "x" * (LONGEST_QUOTE - 3) + "..."
    assert quoted(text) == f"'{quote}'"
    assert len(quoted(text)) <= LONGEST_QUOTE + 2


def test_quotes_escape_what_a_terminal_obeys() -> None:
    assert quoted("a\x1b[31mb\n") == r"'a\x1b[31mb\n'"


def test_lists_end_after_the_most() -> None:
    assert listed(["a"]) == "'a'"
    assert listed(list("abcdef")) == "'a', 'b', 'c', 'd', 'e', 'f'"
    assert listed(list("abcdefgh")) == "'a', 'b', 'c', 'd', 'e', 'f' and 2 more"
    assert listed(list("abc"), 2) == "'a', 'b' and 1 more"


def test_counts() -> None:
    assert [counted(number, "link") for number in (0, 1, 2)] == ["0 links", "1 link", "2 links"]
    assert unused(1, "<gazebo> element", "in <robot>") == "1 <gazebo> element in <robot> is not used"
    assert unused(2, "<gazebo> element", "in <robot>") == "2 <gazebo> elements in <robot> are not used"


def test_paths_of_any_bytes_are_text() -> None:
    assert shown_path(b"a\xff.urdf".decode("utf-8", "surrogateescape")).isprintable()
    assert shown_path("b.urdf") == "b.urdf"


def test_what_a_description_takes_where_nothing_is_said() -> None:
    joint = Joint("j", "fixed", "a", "b", np.zeros(3), np.eye(3), np.array([1.0, 0.0, 0.0]))
    assert (joint.limit, joint.damping, joint.friction, joint.mimic, joint.line) == (None, 0.0, 0.0, None, 0)
    assert (Link("a").inertial, Link("a").line) == (None, 0)
    assert (Mimic("j").multiplier, Mimic("j").offset) == (1.0, 0.0)
    assert Limit() == Limit(None, None, None, None)
    assert Note("warning", "link 'a'", "is odd").line == 0
