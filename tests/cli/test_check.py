"""`dyn check`: findings as text, JSON and SARIF, exit status, selection, and repairs of files in place."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import trimesh

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from dyn_service.model.description import Edit, Note
from dyn_service.parsing import repairs
from dyn_service.parsing.files import read_file
from dyn_service.parsing.repairs import fix, scaled
from dyn_service.parsing.rules import RULES
from tests.cli.test_command_line import Here, dyn_here
from tests.parsing.test_rules import ARMS, INERTIA, LIMIT, MASS, RIGHT, SLIDE, changed, limit, moments

__all__ = ["dyn_here"]
QUICK = "--no-kernels"
LOCKED = [limit(1, 1)]

SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name"],
                                "properties": {
                                    "rules": {"uniqueItems": True, "items": {"required": ["id"], "type": "object"}}
                                },
                            }
                        },
                    },
                    "results": {
                        "items": {
                            "required": ["message", "ruleId", "level", "locations"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {"required": ["text"]},
                                "ruleIndex": {"type": "integer", "minimum": -1},
                                "locations": {
                                    "items": {
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation"],
                                                "properties": {
                                                    "artifactLocation": {
                                                        "properties": {"uri": {"pattern": "^[^ \\\\]+$"}}
                                                    },
                                                    "region": {
                                                        "properties": {"startLine": {"type": "integer", "minimum": 1}}
                                                    },
                                                },
                                            }
                                        }
                                    }
                                },
                            },
                        }
                    },
                },
            },
        },
    },
}
"""What SARIF 2.1.0 requires of the properties in use (its schema's `required`, `enum`, `pattern` and `minimum`)."""


def written(tmp_path: Path, text: str, name: str = "arms.urdf") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def test_rules_are_listed(dyn_here: Here) -> None:
    status, out, _ = dyn_here("check", "--rules")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()] == [[rule.number, name] for name, rule in RULES.items()]


def test_findings_have_number_line_and_repair(dyn_here: Here, tmp_path: Path) -> None:
    file = written(tmp_path, changed([limit(-90, 90), ('velocity="3"', 'velocity="0"')]))
    status, out, _ = dyn_here("check", file, QUICK)
    assert status == 0
    assert re.search(r"line 7\s+joint 'left'\s+DYN203 limits -90 and 90 rad", out)
    assert "write -1.571 and 1.571 rad [--fix]" in out
    assert "DYN305  zero-limit" in out  # whose repair is the rule's
    notes = json.loads(dyn_here("check", file, QUICK, "--json")[1])["notes"]
    note = next(note for note in notes if note.get("name") == "limits-in-degrees")
    assert note["line"] == 7
    assert (note["rule"], note["level"], note["fix"]) == ("DYN203", "warning", True)


@pytest.mark.parametrize(
    ("options", "status"),
    [([], 0), (["--strict"], 1), (["--strict", "--ignore", "DYN303"], 0), (["--strict", "--select", "DYN1"], 0)],
)
def test_exit_status(dyn_here: Here, tmp_path: Path, options: list[str], status: int) -> None:
    for format in ("text", "json", "sarif"):
        file = written(tmp_path, changed(LOCKED))
        assert dyn_here("check", file, QUICK, "--format", format, *options)[0] == status


def test_sarif(dyn_here: Here, tmp_path: Path) -> None:
    (tmp_path / "my robots").mkdir()
    file = written(tmp_path / "my robots", changed(LOCKED))
    controllers = written(tmp_path, "arm: {joints: [lft]}\n", "c.yaml")
    log = json.loads(dyn_here("check", file, QUICK, "--format", "sarif", "--controllers", controllers)[1])
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    results = run["results"]
    assert [result["ruleId"] for result in results] == ["DYN409", "DYN303", "DYN303"]
    assert [run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] for result in results] == [
        result["ruleId"] for result in results
    ]
    places = [result["locations"][0]["physicalLocation"] for result in results]
    assert [place["region"]["startLine"] for place in places] == [1, 7, 13]
    assert [place["artifactLocation"]["uri"].rpartition("/")[2] for place in places] == [
        "c.yaml", "arms.urdf", "arms.urdf",
    ]  # fmt: skip


def test_sarif_of_a_file_that_cannot_be_read(dyn_here: Here, tmp_path: Path) -> None:
    file = written(tmp_path, changed([('parent link="base"', 'parent link="bse"')]))
    status, out, _ = dyn_here("check", file, "--format", "sarif")
    log = json.loads(out)
    jsonschema.validate(log, SARIF)
    (result,) = log["runs"][0]["results"]
    assert (status, result["ruleId"], result["level"]) == (1, "DYN501", "error")
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 7}
    assert dyn_here("check", file)[0] == 1


def test_sarif_of_a_joint_file_that_cannot_be_read(dyn_here: Here, tmp_path: Path) -> None:
    file = written(tmp_path, ARMS)
    joints = written(tmp_path, "robot: arms\njoints:\n  lft: {damping: 0.3}\n", "joints.yaml")
    status, out, _ = dyn_here("check", file, "--joints", joints, "--format", "sarif")
    log = json.loads(out)
    jsonschema.validate(log, SARIF)
    (result,) = log["runs"][0]["results"]
    assert (status, result["ruleId"], "'left'" in result["message"]["text"]) == (1, "DYN501", True)
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"].rpartition("/")[2], place["region"]["startLine"]) == ("joints.yaml", 3)
    assert result["locations"][0]["logicalLocations"] == [{"name": "joints.lft"}]


def test_the_mass_of_a_data_sheet(dyn_here: Here, tmp_path: Path) -> None:
    file = written(tmp_path, ARMS)
    assert dyn_here("check", file, QUICK, "--strict", "--mass", 9)[0] == 0
    status, out, _ = dyn_here("check", file, QUICK, "--strict", "--mass", 12)
    assert status == 1
    assert "DYN114" in out
    assert re.search(r"left\s+2.000000\s+in 1 link\n\s+right\s+2.000000", out)


SDF = """<sdf version="1.9"><model name="m">
  <link name="base"><inertial><mass>5</mass><inertia><ixx>0.02</ixx><iyy>0.02</iyy><izz>0.02</izz></inertia></inertial></link>
  <!-- moments in kg mm^2 --><link name="arm"><pose>0 0.1 0 0 0 0</pose>
    <inertial><pose>0 0 0.2 0 0 0</pose><mass>2</mass>
      <inertia><ixx>3.0e4</ixx><iyy> 30000 </iyy><izz>2000.</izz></inertia></inertial>
    <collision name="c"><pose>0 0 0.2 0 0 0</pose><geometry><box><size>0.08 0.08 0.4</size></box></geometry></collision>
  </link>
  <joint name="f" type="fixed"><parent>world</parent><child>base</child></joint>
  <joint name="j" type="revolute"><parent>base</parent><child>arm</child><axis><xyz>0 1 0</xyz></axis></joint>
</model></sdf>"""  # noqa: E501
MJCF = """<mujoco><compiler angle="radian"/><worldbody>
  <body name="base"><inertial pos="0 0 0" mass="5" diaginertia=".02 .02 .02"/>
    <body name="arm" pos="0 0.1 0"><joint name="j" axis="0 1 0" range="-90  90"/>
      <inertial pos="0 0 0.2" mass="2" diaginertia="3e4 30000
        2000."/><geom type="box" pos="0 0 0.2" size="0.04 0.04 0.2"/></body></body>
</worldbody></mujoco>"""


@pytest.mark.parametrize(
    ("name", "text", "new", "count"),
    [
        ("arms.sdf", SDF,
         [("3.0e4", "3.0e-2"), (" 30000 ", " 0.030000 "), ("2000.", "0.002000")], 3),
        ("arms.xml", MJCF,
         [("-90  90", "-1.570796327  1.570796327"), ("3e4 30000", "3e-2 0.030000"), ("2000.", "0.002000")], 2),
        ("arms.urdf", changed([moments(3e4, 3e4, 2e3)]),
         [('"30000.0"', '"0.0300000"'), ('"2000.0"', '"0.0020000"')], 6),
        ("arms.urdf", changed([limit(-90, 90)]).replace("<link", "<!-- a -- b --><link", 1),
         [('lower="-90"', 'lower="-1.570796327"'), ('upper="90"', 'upper="1.570796327"')], 4),
        ("arms.urdf", changed([('type="revolute"', 'type="prismatic"'), limit(0, 400)]).replace("0 0.1", "0.1 0.1"),
         [('upper="400"', 'upper="0.400"')], 2),
        ("arms.urdf", changed([('rpy="0 0 0"', "rpy = '0 -90 180'")]),
         [("'0 -90 180'", "'0 -1.570796327 3.141592654'")], 2),
        ("arms.urdf", changed([(MASS, '<mass value="20000"/>'), moments(300, 300, 22)]).replace('"5"', '"5000"')
         .replace('="0.02"', '="22"'),
         [('"20000"', '"20.000"'), ('="300"', '="0.300"'), ('"22"', '"0.022"'), ('"5000"', '"5.000"')], 12),
        ("arms.urdf", ARMS.replace(RIGHT, RIGHT.replace(INERTIA, INERTIA.replace('iyy="0.03"', 'iyy="0.00030"'))),
         [('iyy="0.00030"', 'iyy="0.030"')], 1),
    ],
    ids=["sdf", "mjcf", "urdf", "degrees", "travel", "rpy", "grams", "one moment"],
)  # fmt: skip
def test_repairs(dyn_here: Here, tmp_path: Path, name: str, text: str, new: list[tuple[str, str]], count: int) -> None:
    """Only the digits of the repaired numbers change, and the finding is gone."""
    file = written(tmp_path, text, name)
    file.chmod(0o640)
    (tmp_path / "link").symlink_to(file)
    status, _, errors = dyn_here("check", tmp_path / "link" if name != "arms.xml" else file, QUICK, "--fix", "--strict")
    expected = text
    for old, repaired in new:
        assert old in expected
        expected = expected.replace(old, repaired)
    assert file.read_text() == expected
    assert (status, f"{count} numbers changed" in errors) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == sorted([name, "link"])
    assert fix(file) == ([], [])


HEAVY = '<mass value="2000"/>'
ONE_MOMENT = INERTIA.replace('izz="0.002"', 'izz="2"')
PLAIN = "<inertial><mass>2</mass><inertia><ixx>.03</ixx><iyy>.03</iyy><izz>.02</izz></inertia></inertial>"
NESTED = SDF.replace(
    '<model name="m">',
    f'<model name="m"><model name="n"><link name="arm">{PLAIN}</link></model><joint name="k" type="fixed">'
    "<parent>base</parent><child>n::arm</child></joint>",
)


def of_right(old: str, new: str) -> str:
    assert old in RIGHT
    return ARMS.replace(RIGHT, RIGHT.replace(old, new))


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        # one link of three in grams: the others are in kg
        (ARMS.replace('"5"', '"5000"').replace('="0.02"', '="20"'), {"masses-in-grams"}),
        # a mass in grams and moments in kg m^2: the moments are right
        (of_right(MASS, HEAVY), {"masses-in-grams"}),
        (changed([(MASS, '<mass value="60"/>'), moments(1e-3, 1e-3, 6e-5)]), {"too-little-inertia"}),
        # one moment of three is 1000 times too large; one of the twin's moments is 20 times too large
        (changed([(INERTIA, ONE_MOMENT)]), {"inertia-beyond-shapes", "impossible-inertia"}),
        (changed([moments(30, 0.03, 0.002)]), {"too-much-inertia", "impossible-inertia"}),
        (of_right('iyy="0.03"', 'iyy="0.6"'), {"impossible-inertia"}),
        # one bound in degrees, or an angle, beside one that may be in rad
        (changed([limit(-2, 90)]), {"limits-in-degrees"}),
        (changed([('rpy="0 0 0"', 'rpy="0 -3 180"')]), {"rpy-in-degrees"}),
        (changed([SLIDE, limit(-1, 400)]).replace("0 0.1", "0.1 0.1"), {"travel-in-millimetres"}),
        # degrees in other numbers of the joint
        (changed([(LIMIT, LIMIT.replace("2", "90").replace('velocity="3"', 'velocity="180"'))]), {"limits-in-degrees"}),
        (changed([limit(-90, 90), ("<dynamics", '<safety_controller soft_lower_limit="-85"/><dynamics')]),
         {"limits-in-degrees"}),
        (of_right(LIMIT + "/>", limit(-90, 90)[1] + '/><mimic joint="left" offset="10"/>'), {"limits-in-degrees"}),
        # no plain number
        (changed([limit(-90, 90)]).replace('"-90"', '"-&#57;0"'), {"limits-in-degrees"}),
        (SDF.replace("<axis>", "<axis><limit><lower><!-- deg -->-90</lower><upper>90</upper></limit>")
         .replace("3.0e4", "0.03").replace("30000", "0.03").replace("2000.", "0.002"), {"limits-in-degrees"}),
    ],
)  # fmt: skip
def test_numbers_that_may_be_right_are_left(tmp_path: Path, text: str, rules: set[str]) -> None:
    file = written(tmp_path, text, "arms.sdf" if text.startswith("<sdf") else "arms.urdf")
    rules_in_file = {note.rule for note in repairs._checked(file.read_bytes(), file)}
    assert rules <= rules_in_file
    changes, _ = fix(file)
    assert (changes, file.read_text()) == ([], text)


@pytest.mark.parametrize(
    "spelling",
    [
        ("\n", "\r\n"),
        ("<robot", "\N{BYTE ORDER MARK}<robot"),
        ('"', "'"),
        ('lower="-90" upper="90"', 'upper = "90"\n lower="-90"'),
        ("<limit", """<limit note=' lower="-1" upper="1" > '"""),
        ("<limit", '<!-- <limit lower="-1"/> --><limit'),
        ('"90"', '" +9.0e1\t"'),
    ],
    ids=["crlf", "bom", "single quotes", "order", "attribute in attribute", "comment", "white space"],
)
def test_everything_else_stays(tmp_path: Path, spelling: tuple[str, str]) -> None:
    text = changed([limit(-90, 90)]).replace(*spelling)
    file = tmp_path / "arms.urdf"
    file.write_bytes(text.encode())
    changes, _ = fix(file)
    assert len(changes) == 4
    new = file.read_bytes().decode()
    digits = re.compile(r"(lower\s*=\s*.)-90|(upper\s*=\s*. ?)(?:90|\+9.0e1)(?=\W)")
    repaired = re.compile(r"(lower\s*=\s*.)-1.570796327|(upper\s*=\s*. ?)1.570796327")
    assert digits.sub(r"\1\2#", text) == repaired.sub(r"\1\2#", new)
    assert fix(file) == ([], [])


def test_a_file_that_is_read_only_is_left(tmp_path: Path) -> None:
    file = written(tmp_path, changed([limit(-90, 90)]))
    file.chmod(0o444)
    with pytest.raises(PermissionDeniedError, match="read-only"):
        fix(file)
    assert file.read_text() == changed([limit(-90, 90)])


def test_an_interrupt_while_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, changed([limit(-90, 90)]))

    def interrupted(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fix(file)
    assert file.read_text() == changed([limit(-90, 90)])
    assert os.listdir(tmp_path) == ["arms.urdf"]


def test_links_of_one_name_are_left(tmp_path: Path) -> None:
    changes, unwritten = fix(written(tmp_path, NESTED, "arms.sdf"))
    assert (changes, [note.element for note in unwritten]) == ([], ["link 'arm'"])


def test_changes_name_the_link_and_the_quantity(tmp_path: Path) -> None:
    text = changed([(MASS, '<mass value="20000"/>'), moments(300, 300, 22)]).replace('"5"', '"5000"')
    changes, _ = fix(written(tmp_path, text.replace('="0.02"', '="22"')))
    names = {(change.element, change.label) for change in changes}
    assert names == {(f"link '{link}'", label) for link in ("base", "left_arm", "right_arm")
                     for label in ("mass", "ixx", "iyy", "izz")}  # fmt: skip


def test_new_findings_of_any_rule_prevent_a_repair_of_units(tmp_path: Path) -> None:
    """Units of the whole robot hide that one link has moments in kg m^2, which the factor makes too small."""
    text = of_right(INERTIA, moments(0.3, 0.3, 0.022)[1]).replace(INERTIA, moments(300, 300, 22)[1])
    text = text.replace(MASS, '<mass value="20000"/>').replace('"5"', '"5000"').replace('="0.02"', '="22"')
    file = written(tmp_path, text)
    with pytest.raises(FailedPreconditionError, match="new ones"):
        fix(file)
    assert file.read_text() == text


def test_a_repaired_inertia_fits_its_mesh(tmp_path: Path) -> None:
    trimesh.creation.box((0.08, 0.08, 0.4)).export(tmp_path / "arm.stl")
    text = changed([moments(30, 30, 2), ('<box size="0.08 0.08 0.4"/>', '<mesh filename="arm.stl"/>')])
    file = written(tmp_path, text)
    changes, unwritten = fix(file)
    assert ({change.rule for change in changes}, unwritten) == ({"too-much-inertia"}, [])
    for link in read_file(file).links[1:]:
        assert link.inertial is not None
        np.testing.assert_array_equal(np.diag(link.inertial.inertia), (0.03, 0.03, 0.002))


def test_filters_apply_to_repairs(tmp_path: Path) -> None:
    file = written(tmp_path, changed([limit(-90, 90)]))
    assert fix(file, lambda note: False) == ([], [])
    assert file.read_text() == changed([limit(-90, 90)])


def test_numbers_that_are_elsewhere_are_left(tmp_path: Path) -> None:
    """The range is that of a default class; a body in an included file."""
    text = MJCF.replace(' range="-90  90"', "").replace("3e4 30000\n        2000.", "0.03 0.03 0.002")
    default = '<default><joint range="-90 90"/></default><worldbody>'
    file = written(tmp_path, text.replace("<worldbody>", default), "arms.xml")
    changes, unwritten = fix(file)
    assert (changes, [note.rule for note in unwritten]) == ([], ["limits-in-degrees"])


def test_repairs_that_repair_nothing_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, changed([limit(-90, 90)]))
    text = file.read_text()
    checked = repairs.findings

    def doubled(*arguments: Any) -> list[Note]:
        edit = Edit("joint", "left", "range", 0.5)
        return [Note(x.kind, x.element, x.text, x.line, x.rule, edits=(edit,)) for x in checked(*arguments) if x.rule]

    monkeypatch.setattr(repairs, "findings", doubled)
    with pytest.raises(FailedPreconditionError, match="nothing is written"):
        fix(file)
    assert file.read_text() == text


def test_xacro_is_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="xacro"):
        fix(written(tmp_path, ARMS, "arms.xacro"))


@pytest.mark.parametrize(
    ("text", "factor", "new"),
    [
        ("12.50", 1e-3, "0.01250"), ("-3", 1e-3, "-0.003"), ("1.5e-2", 1e-3, "1.5e-5"), ("2E3", 1e3, "2e6"),
        ("0.0", 1e-3, "0.0"), (" 1\t2 ", 10.0, " 10\t20 "), ("180", np.pi / 180, "3.141592654"),
    ],
)  # fmt: skip
def test_scaled(text: str, factor: float, new: str) -> None:
    assert scaled(text, factor) == new


def test_one_of_several_numbers_is_scaled() -> None:
    assert scaled("1 2 3", 10.0, 1) == "1 20 3"
    assert LIMIT in ARMS
