"""XML that expat refuses and other engines read."""

from __future__ import annotations

from pathlib import Path

import mujoco
import pytest

from dyn_service.errors import UrdfError
from dyn_service.parsing.files import read_file, read_text

COMMENTS = "<!-- one -->\n<!-- two -- and -->\n<!------ three\n--- more --->"
ROBOTS = {
    "urdf": f'<robot name="r">{COMMENTS}<link name="a"/></robot>',
    "sdf": f'<sdf version="1.9">{COMMENTS}<model name="r"><link name="a"/></model></sdf>',
    "mjcf": f'<mujoco model="r">{COMMENTS}<worldbody><body name="a"/></worldbody></mujoco>',
}


@pytest.mark.parametrize("kind", ROBOTS)
def test_dashes_in_comments(kind: str) -> None:
    """MuJoCo and TinyXML end a comment at its first `-->`."""
    text = ROBOTS[kind]
    if kind == "mjcf":
        assert mujoco.MjModel.from_xml_string(text).nbody == 2
    description = read_text("\n" + text)
    assert description.links[-1].name == "a"
    (note,) = (note for note in description.notes if note.element == "comment")
    assert (note.kind, note.line) == ("changed", 3)
    assert "'--'" in note.text
    assert not [note for note in read_text(text.replace("--- more -", "").replace("-- and", "").replace("----", ""))
                .notes if note.element == "comment"]  # fmt: skip


def test_dashes_in_a_file_that_is_included(tmp_path: Path) -> None:
    (tmp_path / "part.xml").write_text("<mujocoinclude>\n<!-- a -- b --><body name='a'/></mujocoinclude>")
    main = tmp_path / "main.xml"
    main.write_text('<mujoco model="m"><worldbody><include file="part.xml"/></worldbody></mujoco>')
    (note,) = (note for note in read_file(main).notes if "'--'" in note.text)
    assert note.element.endswith("part.xml:2: comment")


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("<robot><!-- a -- b -->\n</link></robot>", r"^<text>:2: malformed XML: mismatched tag"),
        ("<robot>\n<!-- a -- b", r"^<text>:2: malformed XML"),
        ("<robot><!-- a -- b -->" + "<!--" * 100_000, r"^<text>:1: malformed XML"),
    ],
)
def test_other_faults_stay(text: str, pattern: str) -> None:
    with pytest.raises(UrdfError, match=pattern):
        read_text(text)
