"""The receipt: its text to the letter, its plain form, and what it makes of the tree's notes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from dyn_service.model.description import Description, Note, RootType
from dyn_service.parsing.report import KINDS, MassSummary, Receipt, build_receipt
from dyn_service.parsing.urdf.reader import read_text

GRIPPER = """<robot name="gripper">
<link name="base"/>
<link name="palm">
<inertial><mass value="0.5"/><inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/></inertial>
<visual/>
</link>
<link name="pad"/>
<link name="left"><inertial><origin/><mass value="0.1"/></inertial></link>
<link name="right"><inertial><origin/><mass value="0.1"/></inertial></link>
<joint name="wrist" type="continuous"><origin/><parent link="base"/><child link="palm"/><axis xyz="0 0 2"/></joint>
<joint name="glue" type="fixed"><origin/><parent link="palm"/><child link="pad"/></joint>
<joint name="slide" type="prismatic">
<origin/><parent link="palm"/><child link="left"/><axis xyz="0 1 0"/><limit lower="0" upper="0.04"/>
</joint>
<joint name="mirror" type="prismatic">
<origin/><parent link="palm"/><child link="right"/><axis xyz="0 -1 0"/><mimic joint="slide"/>
</joint>
</robot>
"""

MERGED = (Note("merged", "link 'pad'", "welded by fixed joint 'glue' to the body of link 'palm'"),)

RENDERED = """\
gripper: 5 links, 4 joints (3 movable: 1 continuous, 2 prismatic; 1 fixed)

  source         <text>
  fingerprint    00ff00ff
  moving bodies  3
  following      1 joint, without entries in q, v and tau
  notes          2 warning, 1 following, 1 changed, 4 defaulted, 1 merged, 1 dropped

  mass                    kg  centre of mass x            y            z  m, root frame, q = 0
  as written        0.700000          0.000000     0.012500    -1.000000
  as computed       0.700000          0.000000     0.012500    -1.000000
  left              0.100000  in 1 link
  right             0.100000  in 1 link

warning (2): kept as written, but probably a mistake
  line 8  link 'left'   DYN102 mass 0.1 kg and no inertia: a point mass
  line 9  link 'right'  DYN102 mass 0.1 kg and no inertia: a point mass

following (1): joints that mimic others: they have no entries in q, v and tau
  line 15  joint 'mirror'  follows 1 * 'slide' + 0

changed (1): converted or corrected
  line 10  joint 'wrist' axis  (0, 0, 2) has length 2; normalized

defaulted (4): missing, a default was used
   line 4  link 'palm' inertial   no <origin>: the centre of mass is the link's origin
   line 8  link 'left' inertial   no <inertia>: zero is used
   line 9  link 'right' inertial  no <inertia>: zero is used
  line 15  joint 'mirror'         no <limit>, which URDF requires: the joint is unlimited

merged (1): links welded to another link
  line 7  link 'pad'  welded by fixed joint 'glue' to the body of link 'palm'

dropped (1): not used
  line 1  robot 'gripper'  geometry of 1 link is not used in dynamics

rules (1): what repairs a warning, if it does not name its own repair
  DYN102  point-mass  Add moments of inertia that fit the link's shape."""

TOTAL = MassSummary(0.7, np.array([0.0, 0.0125, -1.0]))


def receipt(description: Description | None = None, **changes: object) -> Receipt:
    arguments = {
        "before": TOTAL,
        "after": TOTAL,
        "movable": ("mirror", "slide", "wrist"),
        "bodies": 3,
        "merged": MERGED,
        "fingerprint": "00ff00ff",
    }
    return build_receipt(description or read_text(GRIPPER), **(arguments | changes))  # type: ignore[arg-type]


def test_text() -> None:
    assert receipt().render() == RENDERED


def test_plain_form() -> None:
    plain = receipt().to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    notes = plain.pop("notes")
    assert plain == {
        "robot": "gripper",
        "source": "<text>",
        "fingerprint": "00ff00ff",
        "root": "fixed",
        "gravity": [0.0, 0.0, -9.81],
        "links": 5,
        "joints": {"continuous": 1, "prismatic": 2, "fixed": 1},
        "movable": ["mirror", "slide", "wrist"],
        "loops": [],
        "driven": None,
        "freedom": None,
        "bodies": 3,
        "certificates": {},
        "mass": {
            "before": {"mass_kg": 0.7, "com_m": [0.0, 0.0125, -1.0]},
            "after": {"mass_kg": 0.7, "com_m": [0.0, 0.0125, -1.0]},
        },
        "sides": {"left": {"links": 1, "mass_kg": 0.1}, "right": {"links": 1, "mass_kg": 0.1}},
    }
    assert len(notes) == 10
    assert notes[2] == {
        "kind": "merged",
        "element": "link 'pad'",
        "text": "welded by fixed joint 'glue' to the body of link 'palm'",
        "line": 7,
    }


def test_numbers_of_numpy_become_plain() -> None:
    plain = receipt(before=MassSummary(np.float64(1.0), np.zeros(3))).to_dict()["mass"]["before"]
    assert type(plain["mass_kg"]) is float
    assert [type(value) for value in plain["com_m"]] == [float] * 3


def test_numbers_that_json_has_not() -> None:
    no_mass = MassSummary(0.0, np.full(3, np.nan))
    report = receipt(before=no_mass, after=MassSummary(float("inf"), np.zeros(3)))
    assert report.to_dict()["mass"] == {
        "before": {"mass_kg": 0.0, "com_m": [None, None, None]},
        "after": {"mass_kg": None, "com_m": [0.0, 0.0, 0.0]},
    }
    assert "nan" in report.render()
    assert "inf" in report.render()


def test_masses_that_differ_show() -> None:
    rows = receipt(after=MassSummary(0.6, np.array([0.0, 0.0, 1.5]))).render().splitlines()
    assert "  as written        0.700000          0.000000     0.012500    -1.000000" in rows
    assert "  as computed       0.600000          0.000000     0.000000     1.500000" in rows


def test_notes_stand_in_the_order_of_lines() -> None:
    report = receipt()
    lines = [note.line for note in report.notes]
    assert lines == sorted(lines)
    assert [note.line for note in report.of_kind("defaulted")] == [4, 8, 9, 15]
    assert report.of_kind("merged") == (Note("merged", "link 'pad'", MERGED[0].text, 7),)


def test_one_link() -> None:
    report = receipt(read_text('<robot name="rock"><link name="stone"/></robot>'), merged=(), movable=(), bodies=0)
    lines = report.render().splitlines()
    assert lines[0] == "rock: 1 link, 0 joints"
    assert "  notes          none" in lines
    assert len(lines) == 10
    assert report.to_dict()["notes"] == []
    assert report.to_dict()["joints"] == {}


def test_fixed_joints_only() -> None:
    text = """<robot name="r"><link name="a"/><link name="b"/>
    <joint name="j" type="fixed"><parent link="a"/><child link="b"/></joint></robot>"""
    assert receipt(read_text(text), merged=()).render().splitlines()[0] == "r: 2 links, 1 joint (1 fixed)"


def test_without_fingerprint() -> None:
    description = read_text(GRIPPER)
    report = build_receipt(description, before=TOTAL, after=TOTAL, movable=(), bodies=3, merged=())
    assert report.fingerprint == ""
    assert "  fingerprint    -" in report.render().splitlines()


def test_sources_without_lines_have_no_empty_column() -> None:
    description = Description("r", read_text(GRIPPER).links, (), notes=(Note("warning", "link 'b'", "odd"),))
    assert receipt(description, merged=()).render().endswith("probably a mistake\n  link 'b'  odd")


def test_every_kind_of_note_is_shown() -> None:
    notes = tuple(Note(kind, f"link '{kind}'", "text") for kind in reversed(KINDS))  # type: ignore[arg-type]
    rows = receipt(Description("r", (), (), notes=notes), merged=()).render().splitlines()
    assert [row.split("'")[1] for row in rows if row.startswith("  link")] == list(KINDS)


@pytest.mark.parametrize("name", ["a\u009b31mb", "a\u202eb", "a\u0085b"])
def test_names_cannot_command_the_terminal(name: str) -> None:
    """C1 control characters and direction marks are legal in XML; names that come from elsewhere are shown here too."""
    report = receipt(Description(name, read_text(GRIPPER).links, (), notes=(Note("warning", name, name),)), merged=())
    text = report.render()
    assert all(line.isprintable() for line in text.split("\n"))
    assert name not in text


def test_head_leaves_out_kinds_of_which_there_are_none() -> None:
    report = dataclasses.replace(receipt(), joints={"revolute": 0, "prismatic": 2, "fixed": 0})
    assert report.render().splitlines()[0] == "gripper: 5 links, 2 joints (2 movable: 2 prismatic)"


def test_control_characters_are_shown_as_escapes() -> None:
    text = receipt(Description("a\u0085b", read_text(GRIPPER).links[:1], ()), merged=()).render()
    assert text.splitlines()[0] == "a\\u0085b: 1 link, 0 joints"


def test_a_note_of_what_the_source_does_not_have_has_no_line() -> None:
    report = receipt(merged=(Note("merged", "link 'ghost'", "welded"),))
    assert report.of_kind("merged") == (Note("merged", "link 'ghost'", "welded", 0),)
    assert [note["line"] for note in report.to_dict()["notes"] if note["kind"] == "merged"] == [None]


def test_a_note_on_a_joint_gets_the_line_of_the_joint() -> None:
    report = receipt(merged=(Note("merged", "joint 'glue'", "welded"), Note("merged", "link 'right'", "welded")))
    assert [(note.element, note.line) for note in report.of_kind("merged")] == [
        ("link 'right'", 9),
        ("joint 'glue'", 11),
    ]


def test_the_plain_form_is_a_copy() -> None:
    """What a reader does to it, the receipt does not see."""
    report = receipt().with_certificates({"f": certificate(0.5)}, [])
    plain = report.to_dict()
    plain["joints"]["fixed"] = 9
    plain["movable"].append("more")
    plain["certificates"]["f"]["error"] = 7.0
    plain["notes"][0]["text"] = ""
    second_copy = report.to_dict()
    assert (second_copy["joints"]["fixed"], second_copy["movable"]) == (1, ["mirror", "slide", "wrist"])
    assert (second_copy["certificates"]["f"]["error"], second_copy["notes"][0]["text"] != "") == (0.5, True)


def test_a_note_with_a_line_keeps_it() -> None:
    report = receipt(merged=(Note("merged", "link 'pad'", "welded", 11),))
    assert report.of_kind("merged") == (Note("merged", "link 'pad'", "welded", 11),)


def test_names_that_can_be_printed_are_shown_as_they_are() -> None:
    """A backslash and a quote too: only what commands a terminal is written another way."""
    text = receipt(read_text('<robot name="a\\b\'c"><link name="d"/></robot>'), merged=()).render()
    assert text.splitlines()[0] == "a\\b'c: 1 link, 0 joints"


@pytest.mark.parametrize("root", ["planar", "floating"])
def test_a_root_that_moves_is_said(root: RootType) -> None:
    fixed = read_text(GRIPPER)
    assert not any(row.startswith("  root") for row in receipt(fixed).render().splitlines())
    assert receipt(fixed).to_dict()["root"] == "fixed"
    report = receipt(dataclasses.replace(fixed, root=root))
    assert f"  root           {root}, by joint 'root_joint'" in report.render().splitlines()
    assert report.to_dict()["root"] == root


def certificate(error: float, refused_error: str | None = None) -> dict[str, object]:
    return {"error": error, "refused": refused_error}


def test_kernels_are_told_with_the_worst_of_their_errors() -> None:
    note = Note("reported", "kernel 'f'", "made from the tree as given")
    bare = receipt()
    assert not any(row.startswith("  kernels") for row in bare.render().splitlines())
    certificates = {"f": certificate(0.125), "g": certificate(0.5), "h": certificate(0.25)}
    report = bare.with_certificates(certificates, [note])
    assert "  kernels        3 certified, errors at most 0.5 of the rounding bound" in report.render().splitlines()
    assert report.to_dict()["certificates"] == certificates
    assert report.notes == (*bare.notes, note)
    assert (report.robot, report.bodies, report.before) == (bare.robot, bare.bodies, bare.before)
    lines = bare.with_certificates(certificates | {"g": certificate(0.5, "lost digits")}, []).render().splitlines()
    expected = "  kernels        3 certified, errors at most 0.5 of the rounding bound; 1 made from the tree as given"
    assert expected in lines
