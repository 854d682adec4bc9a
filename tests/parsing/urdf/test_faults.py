"""Malformed robots: each must be refused with one error that names the file, the line, the element and the cause.

Each row has the values that the message names, so that one which gets vaguer or points elsewhere fails.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dyn_service.errors import (
    DynError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UrdfError,
    from_wire,
)
from dyn_service.model.joints import JOINT_TYPES
from dyn_service.parsing import xml_elements as markup
from dyn_service.parsing.quantities import MAX_FAULTS
from dyn_service.parsing.urdf.reader import ReadLimits, read, read_file, read_text
from tests.phrases import naming, unnamed

LINKS = '<link name="base"/>\n<link name="arm"/>'
INERTIA = '<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/>'


def robot(body: str, attributes: str = 'name="r"') -> str:
    """A robot whose body begins on line 2."""
    return f"<robot {attributes}>\n{body}\n</robot>"


def link(inner: str) -> str:
    """A robot of one link, whose content begins on line 3."""
    return robot(f'<link name="base">\n{inner}\n</link>')


def inertial(inner: str) -> str:
    """A robot of one link with an inertial, whose content begins on line 4."""
    return link(f"<inertial>\n{inner}\n</inertial>")


def joint(inner: str, kind: str = "revolute", attributes: str = 'name="r"') -> str:
    """Two links and a joint on line 4 with its parent on 5, its child on 6 and the rest from line 7."""
    ends = '<parent link="base"/>\n<child link="arm"/>'
    return robot(f'{LINKS}\n<joint name="j" type="{kind}">\n{ends}\n{inner}\n</joint>', attributes)


def graph(links: list[str], *joints: tuple[str, str, str]) -> str:
    """Links one per line from line 2, then fixed joints (name, parent, child) one per line."""
    lines = [f'<link name="{name}"/>' for name in links]
    lines += [
        f'<joint name="{name}" type="fixed"><parent link="{parent}"/><child link="{child}"/></joint>'
        for name, parent, child in joints
    ]
    return robot("\n".join(lines))


VERSION_1_1 = 'name="r" version="1.1"'
MIMICS_IN_A_LOOP = robot(
    '<link name="a"/><link name="b"/><link name="c"/>\n'
    '<joint name="j" type="revolute"><parent link="a"/><child link="b"/><mimic joint="k"/></joint>\n'
    '<joint name="k" type="revolute"><parent link="b"/><child link="c"/><mimic joint="j"/></joint>'
)

*_MOST, _LAST = JOINT_TYPES
TYPES = f"{', '.join(_MOST)} or {_LAST}"

# fmt: off
# name; source; line, element, values in the cause: the error's text is `<text>:line: element: cause`
FAULTS: list[tuple[str, str | bytes, int | None, str | None, list[str]]] = [
    ("empty text", ' \n',
     None, None, ["XML"]),
    ("text that is no XML", "panda",
     1, None, ["XML", "1"]),
    ("mismatched tag", '<robot name="r">\n<link name="base">\n</robot>',
     3, None, ["XML", "3", "<link>", "2"]),
    ("cut off in an element", '<robot name="r">\n<link name="base">\n<inertial>\n',
     4, None, ["XML", "1", "<inertial>", "3"]),
    ("cut off in a tag", '<robot name="r">\n<link name="ba',
     2, None, ["XML", "1", "<robot>", "unclosed"]),
    ("two root elements", robot('<link name="base"/>') + '\n<robot name="s"/>',
     4, None, ["XML", "1", "document"]),
    ("attribute twice", robot('<link name="base" name="hand"/>'),
     2, None, ["XML", "19", "<robot>", "1"]),
    ("attribute without quotes", robot('<link name=base/>'),
     2, None, ["XML", "-formed", "12", "<robot>", "1"]),
    ("undeclared entity", robot('<link name="&base;"/>'),
     2, None, ["XML", "1", "<robot>", "undefined"]),
    ("document type", '<?xml version="1.0"?>\n<!DOCTYPE robot SYSTEM "http://example.org/r.dtd">\n<robot name="r"/>',
     2, None, ["<!DOCTYPE>"]),
    ("document type without anything", '<!DOCTYPE robot>\n<robot name="r"><link name="base"/></robot>',
     1, None, ["<!DOCTYPE>"]),
    ("entity bomb", '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n<robot name="&b;"/>',
     1, None, ["<!DOCTYPE>"]),
    ("external entity", '\n<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]>\n<robot name="&x;"/>',
     2, None, ["<!DOCTYPE>"]),
    ("declaration after a blank line counts lines", '\n\n<?xml version="1.0"?>\n<robot>\n<link name="base"/></robot>',
     4, "robot", ["'name'"]),
    ("comment alone", "<!-- a robot -->\n",
     2, None, ["XML", "1", "element"]),
    ("not UTF-8 after a blank line", b'\n<robot name="\xe9"/>',
     2, None, ["UTF-8", "0xe9"]),
    ("not UTF-8", b'<robot name="r">\n<link name="\xe9"/>\n</robot>',
     2, None, ["UTF-8", "0xe9"]),
    ("UTF-16", robot('<link name="base"/>').encode("utf-16"),
     1, None, ["UTF-8", "0xff", "UTF-16"]),
    ("lone surrogate", robot('<link name="\ud800"/>'),
     2, None, ["U+D800"]),
    ("another root", '<model name="r"/>',
     1, None, ["'model'", "<robot>"]),
    ("SDFormat", '<?xml version="1.0"?>\n<sdf version="1.7"><model name="r"/></sdf>',
     2, None, ["<sdf>", "SDFormat", "Robot.from_file", "URDF", "<robot>"]),
    ("MJCF", '<mujoco model="r"/>',
     1, None, ["<mujoco>", "MuJoCo", "MJCF", "Robot.from_file", "URDF", "<robot>"]),
    ("xacro file of macros", robot('<xacro:include filename="arm.xacro"/>\n<xacro:arm prefix="left"/>'),
     1, "robot", (["<link>", "2", "<xacro:include>", "<robot>"])),
    ("link that a macro would make", robot(f'{LINKS}\n<xacro:tool/>\n<joint name="j" type="fixed">\n'
                                           '<parent link="arm"/><child link="tool"/></joint>'),
     5, "joint 'j'", (["'tool'", "4", "<xacro:tool>", "<robot>"])),
    ("misspelt link", robot('<link name="base"/>\n<lnik name="arm"/>\n<joint name="j" type="fixed">\n'
                            '<parent link="base"/><child link="arm"/></joint>'),
     4, "joint 'j'", (["'arm'", "3", "<lnik>", "<robot>", "<link>"])),
    ("misspelt joint", robot(f'{LINKS}\n<jiont name="j" type="fixed"><parent link="base"/><child link="arm"/></jiont>'),
     3, "link 'arm'", (["2", "'base'", "'arm'", "4", "<jiont>", "<robot>", "<joint>"])),
    ("misspelt mass", inertial('<mas value="1"/>'),
     3, "link 'base' inertial", (["<mass>", "4", "<mas>", "<inertial>"])),
    ("misspelt attribute", inertial('<mass vlaue="1"/>'),
     4, "link 'base' inertial mass", (["'value'", "4", "'vlaue'", "<mass>"])),
    ("misspelt type", robot(LINKS + '\n<joint name="j" typ="fixed"><parent link="base"/><child link="arm"/></joint>'),
     4, "joint 'j'", (["'type'", "4", "'typ'", "<joint>"])),
    ("misspelt parent", robot(LINKS + '\n<joint name="j" type="fixed">\n<parrent link="base"/>'
                                      '<child link="arm"/></joint>'),
     4, "joint 'j'", (["<parent>", "5", "<parrent>", "<joint>"])),
    ("misspelt in another link", robot('<link name="base"><intertial/></link>\n<link name="arm"><inertial/></link>'),
     3, "link 'arm' inertial", ["<mass>"]),
    ("xacro expression as a number", inertial('<mass value="${m}"/>'),
     4, "link 'base' inertial mass",
     ["'value'", "'${m}'", "URDF"]),
    ("xacro expression as a name", robot('<link name="$(arg prefix)base"/>'),
     2, "link", ["'name'", "'$(arg prefix)base'", "URDF"]),
    ("robot without links", robot('<joint name="j" type="fixed"/>'),
     1, "robot", ["<link>"]),
    ("robot without name", '<robot>\n<link name="base"/>\n</robot>',
     1, "robot", ["'name'"]),
    ("robot with blank name", robot('<link name="base"/>', 'name=" "'),
     1, "robot", ["' '"]),
    ("robot's name with a newline", '\n<robot name="a&#10;b"><link name="base"/></robot>',
     2, "robot", ["'a\\nb'", "U+000A"]),
    ("robot's name with a tab", '\n<robot name="a&#9;b"><link name="base"/></robot>',
     2, "robot", ["'a\\tb'", "U+0009"]),
    ("robot's name with an override", '\n<robot name="a\u202eb"><link name="base"/></robot>',
     2, "robot", ["'a\\u202eb'", "U+202E"]),
    ("robot's name with a line separator", '\n<robot name="a\u2028b"><link name="base"/></robot>',
     2, "robot", ["'a\\u2028b'", "U+2028"]),
    ("joint's name with a terminal sequence", robot(LINKS + '\n<joint name="j\x9b2J" type="fixed"/>'),
     4, "joint", ["'j\\x9b2J'", "U+009B"]),
    ("link without name", robot('<link name="base"/>\n<link/>'),
     3, "link", ["'name'"]),
    ("link with empty name", robot('<link name=""/>'),
     2, "link", ["''"]),
    ("link with an endless name", robot(f'<link name="{"x" * 257}"/>'),
     2, "link", ["257", "256"]),
    ("two links of one name", robot(LINKS + '\n<link name="base"/>'),
     4, "link 'base'", ["2", "already", "defined"]),
    ("misspelt in another joint",
     joint('<limits lower="0"/>').replace("</robot>", '<joint name="k" type="fixed"/>\n</robot>'),
     9, "joint 'k'", ["<parent>"]),
    ("two inertials", link('<inertial><mass value="1"/></inertial>\n<inertial><mass value="2"/></inertial>'),
     4, "link 'base'", ["2", "<inertial>", "3"]),
    ("inertial without mass", inertial(INERTIA),
     3, "link 'base' inertial", ["<mass>"]),
    ("two masses", inertial('<mass value="1"/>\n<mass value="2"/>'),
     5, "link 'base' inertial", ["2", "<mass>", "4"]),
    ("mass without value", inertial('<mass/>'),
     4, "link 'base' inertial mass", ["'value'", "missing"]),
    ("mass empty", inertial('<mass value=""/>'),
     4, "link 'base' inertial mass", ["'value'", "''"]),
    ("mass negative", inertial('<mass value="-0.5"/>'),
     4, "link 'base' inertial mass", ["-0.5"]),
    ("mass NaN", inertial('<mass value="nan"/>'),
     4, "link 'base' inertial mass", ["'value'", "'nan'"]),
    ("mass infinite", inertial('<mass value="inf"/>'),
     4, "link 'base' inertial mass", ["'value'", "'inf'"]),
    ("mass overflows", inertial('<mass value="1e999"/>'),
     4, "link 'base' inertial mass", ["'value'", "'1e999'"]),
    ("mass with underscore", inertial('<mass value="1_000"/>'),
     4, "link 'base' inertial mass", ["'value'", "'1_000'"]),
    ("mass hexadecimal", inertial('<mass value="0x10"/>'),
     4, "link 'base' inertial mass", ["'value'", "'0x10'"]),
    ("mass with unit", inertial('<mass value="2 kg"/>'),
     4, "link 'base' inertial mass", ["'value'", "'2 kg'"]),
    ("mass with decimal comma", inertial('<mass value="1,5"/>'),
     4, "link 'base' inertial mass", ["'value'", "'1,5'"]),
    ("mass of two numbers", inertial('<mass value="1 2"/>'),
     4, "link 'base' inertial mass", ["'value'", "2", "'1 2'"]),
    ("mass in digits of another script", inertial('<mass value="\u0661"/>'),
     4, "link 'base' inertial mass", ["'value'", "'\u0661'"]),
    ("mass of very many digits", inertial(f'<mass value="{"1" * 2000}"/>'),
     4, "link 'base' inertial mass", ["'value'", "2000"]),
    ("message cannot carry a terminal sequence", inertial('<mass value="\x9b2J"/>'),
     4, "link 'base' inertial mass", ["'value'", "'\\x9b2J'"]),
    ("inertia lacks a moment", inertial('<mass value="1"/>\n<inertia ixx="1" ixy="0" ixz="0" iyy="1" izz="1"/>'),
     5, "link 'base' inertial inertia", ["'iyz'"]),
    ("inertia NaN", inertial('<mass value="1"/>\n' + INERTIA.replace('izz="1"', 'izz="NaN"')),
     5, "link 'base' inertial inertia", ["'izz'", "'NaN'"]),
    ("two inertias", inertial('<mass value="1"/>\n' + INERTIA + '\n' + INERTIA),
     6, "link 'base' inertial", ["2", "<inertia>", "5"]),
    ("inertial origin of two numbers", inertial('<origin xyz="0 1"/>\n<mass value="1"/>'),
     4, "link 'base' inertial origin", ["'xyz'", "3", "2", "'0 1'"]),
    ("joint without name", robot(LINKS + '\n<joint type="fixed"/>'),
     4, "joint", ["'name'"]),
    ("joint with blank name", robot(LINKS + '\n<joint name="\t" type="fixed"/>'),
     4, "joint", ["' '"]),
    ("two joints of one name", graph(["a", "b", "c"], ("j", "a", "b"), ("j", "b", "c")),
     6, "joint 'j'", ["5"]),
    ("joint without type", robot(LINKS + '\n<joint name="j"/>'),
     4, "joint 'j'", ["'type'"]),
    ("joint of unknown type", joint("", "hinge"),
     4, "joint 'j'", ["'hinge'", TYPES]),
    ("type in capitals", joint("", "Revolute"),
     4, "joint 'j'",
     ["'Revolute'", TYPES, "'revolute'"]),
    ("misspelt joint type", joint("", "continous"),
     4, "joint 'j'",
     ["'continous'", TYPES, "'continuous'"]),
    ("misspelt type of several ways to move", joint("", "Floating"),
     4, "joint 'j'",
     ["'Floating'", TYPES, "'floating'"]),
    ("joint without parent", robot(LINKS + '\n<joint name="j" type="fixed">\n<child link="arm"/>\n</joint>'),
     4, "joint 'j'", ["<parent>"]),
    ("joint without child", robot(LINKS + '\n<joint name="j" type="fixed">\n<parent link="base"/>\n</joint>'),
     4, "joint 'j'", ["<child>"]),
    ("parent without link",
     robot(LINKS + '\n<joint name="j" type="fixed">\n<parent name="base"/>\n<child link="arm"/>\n</joint>'),
     5, "joint 'j' parent", ["'link'"]),
    ("child with empty link",
     robot(LINKS + '\n<joint name="j" type="fixed">\n<parent link="base"/>\n<child link=""/>\n</joint>'),
     6, "joint 'j' child", ["''"]),
    ("two parent elements", joint('<parent link="arm"/>'),
     7, "joint 'j'", ["2", "<parent>", "5"]),
    ("two child elements", joint('<child link="base"/>'),
     7, "joint 'j'", ["2", "<child>", "6"]),
    ("undeclared world that makes no tree", graph(["a", "b", "c"], ("j", "world", "b")),
     5, "joint 'j'", ["'world'"]),
    ("undeclared world that is a child too", graph(["a", "b"], ("j", "world", "a"), ("k", "a", "world")),
     4, "joint 'j'", ["'world'", "<text>", "5", "'k'"]),
    ("undeclared world as a child", graph(["a"], ("j", "a", "world")),
     3, "joint 'j'", ["'world'"]),
    ("undeclared world beside another fault", graph(["a", "b"], ("j", "world", "a"), ("k", "a", "bb"), ("l", "a", "b")),
     4, "joint 'j'", ["'world'", "<text>", "5", "'k'", "'bb'"]),
    ("undeclared World", graph(["a", "b"], ("j", "World", "a"), ("k", "a", "b")),
     4, "joint 'j'", ["'World'"]),
    ("undeclared world beside a declared one", graph(["World", "a"], ("j", "world", "a")),
     4, "joint 'j'", ["'world'", "'World'"]),
    ("undeclared parent", graph(["a", "b"], ("j", "map", "a"), ("k", "a", "b")),
     4, "joint 'j'", ["'map'"]),
    ("unknown child with a near name", graph(["shoulder", "elbow"], ("j", "shoulder", "elbo")),
     4, "joint 'j'", ["'elbo'", "'elbow'"]),
    ("own parent", graph(["a", "b", "c"], ("j", "a", "a")),
     5, "joint 'j'", ["'a'", "parent"]),
    ("two parents", graph(["a", "b", "c"], ("j", "a", "c"), ("k", "b", "c")),
     6, "joint 'k'", ["'c'", "'j'", "5"]),
    ("loop of all links", graph(["a", "b", "c"], ("j", "a", "b"), ("k", "b", "c"), ("l", "c", "a")),
     5, "joint 'j'", ["'b' -> 'c' -> 'a' -> 'b'"]),
    ("loop beside the tree", graph(["a", "b", "c"], ("j", "b", "c"), ("k", "c", "b")),
     5, "joint 'j'", ["'c' -> 'b' -> 'c'"]),
    ("loop of many links",
     graph([str(i) for i in range(12)], *((f"j{i}", str(i), str((i + 1) % 12)) for i in range(12))),
     14, "joint 'j0'",
     ["'1' -> '2' -> '3' -> '4' -> '5' -> '6' -> '7' -> '8' -> (4 more) -> '1'"]),
    ("two roots", graph(["a", "b", "c"], ("j", "a", "b")),
     4, "link 'c'", ["2", "'a'", "'c'"]),
    ("many roots", graph(list("abcdefgh")),
     3, "link 'b'",
     ["8", "'a'", "'b'", "'c'", "'d'", "'e'", "'f'", "2"]),
    ("two origins", joint('<origin xyz="0 0 0"/>\n<origin xyz="0 0 1"/>'),
     8, "joint 'j'", ["2", "<origin>", "7"]),
    ("origin with commas", joint('<origin xyz="0, 0, 1"/>'),
     7, "joint 'j' origin", ["'xyz'", "3", "'0, 0, 1'"]),
    ("origin of four numbers", joint('<origin xyz="0 0 0 1"/>'),
     7, "joint 'j' origin", ["'xyz'", "3", "4", "'0 0 0 1'"]),
    ("origin with infinite angle", joint('<origin rpy="0 0 -inf"/>'),
     7, "joint 'j' origin", ["'rpy'", "3", "'0 0 -inf'"]),
    ("origin with broken exponent", joint('<origin rpy="0 0 1e"/>'),
     7, "joint 'j' origin", ["'rpy'", "3", "'0 0 1e'"]),
    ("numbers parted by a no-break space", joint('<origin rpy="0 0\u00a01"/>'),
     7, "joint 'j' origin", ["'rpy'", "3", "'0 0\\xa01'"]),
    ("quaternion in URDF 1.0", joint('<origin quat_xyzw="0 0 0 1"/>'),
     7, "joint 'j' origin", ["'quat_xyzw'", "URDF", "1.1", "version="]),
    ("quaternion beside rpy", joint('<origin rpy="0 0 0" quat_xyzw="0 0 0 1"/>', attributes=VERSION_1_1),
     7, "joint 'j' origin", ["quat_xyzw", "both"]),
    ("quaternion zero", joint('<origin quat_xyzw="0 0 0 0"/>', attributes=VERSION_1_1),
     7, "joint 'j' origin", ["'quat_xyzw'", "(0, 0, 0, 0)"]),
    ("quaternion of three numbers", joint('<origin quat_xyzw="0 0 1"/>', attributes=VERSION_1_1),
     7, "joint 'j' origin", ["'quat_xyzw'", "4", "3", "'0 0 1'"]),
    ("two axes", joint('<axis xyz="1 0 0"/>\n<axis xyz="0 1 0"/>'),
     8, "joint 'j'", ["2", "<axis>", "7"]),
    ("two axes, one of them without a number", joint('<axis xyz="1 0 0"/>\n<axis xyz="z"/>'),
     8, "joint 'j'", ["2", "<axis>", "7"]),
    ("three axes, the last another", joint('<axis xyz="1 0 0"/>\n<axis xyz="1 0 0"/>\n<axis xyz="0 1 0"/>'),
     8, "joint 'j'", ["3", "<axis>", "7"]),
    ("axis zero", joint('<axis xyz="0 0 0"/>'),
     7, "joint 'j' axis", ["(0, 0, 0)"]),
    ("axis nearly zero", joint('<axis xyz="0 1e-12 0"/>', "prismatic"),
     7, "joint 'j' axis", ["(0, 1e-12, 0)"]),
    ("axis without xyz", joint('<axis/>'),
     7, "joint 'j' axis", ["'xyz'", "missing"]),
    ("axis with blank xyz", joint('<axis xyz=" "/>', "prismatic"),
     7, "joint 'j' axis", ["'xyz'", "3", "' '"]),
    ("axis of two numbers", joint('<axis xyz="1 0"/>', "continuous"),
     7, "joint 'j' axis", ["'xyz'", "3", "2", "'1 0'"]),
    ("axis NaN", joint('<axis xyz="NaN 0 0"/>'),
     7, "joint 'j' axis", ["'xyz'", "3", "'NaN 0 0'"]),
    ("axis as a word", joint('<axis xyz="z"/>'),
     7, "joint 'j' axis", ["'xyz'", "3", "'z'"]),
    ("axis of a fixed joint malformed", joint('<axis xyz="0 0"/>', "fixed"),
     7, "joint 'j' axis", ["'xyz'", "3", "2", "'0 0'"]),
    ("screw without a pitch", joint("", "screw"),
     4, "joint 'j'", ["<drake:screw_thread_pitch>"]),
    ("screw with a pitch of no value", joint('<drake:screw_thread_pitch/>', "screw"),
     7, "joint 'j' drake:screw_thread_pitch", ["'value'", "missing"]),
    ("screw with a pitch as a word", joint('<drake:screw_thread_pitch value="fine"/>', "screw"),
     7, "joint 'j' drake:screw_thread_pitch",
     ["'value'", "'fine'"]),
    ("two limits", joint('<limit lower="0"/>\n<limit upper="1"/>'),
     8, "joint 'j'", ["2", "<limit>", "7"]),
    ("limit infinite", joint('<limit lower="-inf" upper="1"/>'),
     7, "joint 'j' limit", ["'lower'", "'-inf'"]),
    ("limit overflows", joint('<limit velocity="-1e400"/>'),
     7, "joint 'j' limit", ["'velocity'", "'-1e400'"]),
    ("two dynamics", joint('<dynamics/>\n<dynamics damping="1"/>'),
     8, "joint 'j'", ["2", "<dynamics>", "7"]),
    ("damping as a word", joint('<dynamics damping="high"/>'),
     7, "joint 'j' dynamics", ["'damping'", "'high'"]),
    ("friction empty", joint('<dynamics friction=""/>'),
     7, "joint 'j' dynamics", ["'friction'", "''"]),
    ("mimic without joint", joint('<mimic multiplier="2"/>'),
     7, "joint 'j' mimic", ["'joint'"]),
    ("mimic of itself", joint('<mimic joint="j"/>'),
     4, "joint 'j' mimic", ["follows", "itself"]),
    ("mimic with bad multiplier", joint('<mimic joint="k" multiplier="two"/>'),
     7, "joint 'j' mimic", ["'multiplier'", "'two'"]),
    ("mimics in a loop", MIMICS_IN_A_LOOP,
     3, "joint 'j' mimic", ["'j' -> 'k' -> 'j'"]),
]

# fmt: on


@pytest.mark.parametrize(("source", "line", "element", "values"), [pytest.param(*f[1:], id=f[0]) for f in FAULTS])
def test_malformed(source: str | bytes, line: int | None, element: str | None, values: list[str]) -> None:
    with pytest.raises(UrdfError) as excinfo:
        read_text(source)
    error = excinfo.value
    place = "<text>" if line is None else f"<text>:{line}"
    assert str(error).startswith(f"{place}: " if element is None else f"{place}: {element}: ")
    assert unnamed(error, *values) == []
    assert (error.file, error.line, error.element) == ("<text>", line, element)
    assert type(error) is UrdfError
    assert error.code == "INVALID_ARGUMENT"


def test_fault_in_a_file_names_the_path(tmp_path: Path) -> None:
    path = tmp_path / "arm.urdf"
    path.write_text(inertial('<mass value="nan"/>'))
    with pytest.raises(UrdfError) as excinfo:
        read(path)
    expected = "link 'base' inertial mass: attribute 'value': expected a plain decimal number, found 'nan'"
    assert str(excinfo.value) == f"{path}:4: {expected}"
    assert (excinfo.value.file, excinfo.value.line) == (str(path), 4)


def test_fault_in_named_text_names_it() -> None:
    with pytest.raises(UrdfError, match=naming("load_robot:1", "'r'", "<robot>")):
        read_text("<r/>", source="load_robot")


class TestPaths:
    """Sources that are no readable file: said as such, before anything is parsed."""

    def test_missing_file(self, tmp_path: Path) -> None:
        path = tmp_path / "arm.urdf"
        for source in (path, str(path)):
            with pytest.raises(NotFoundError) as excinfo:
                read(source)
            assert str(excinfo.value) == f"the file {path} does not exist"

    def test_directory(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError) as excinfo:
            read(tmp_path)
        assert unnamed(excinfo.value, f"{tmp_path}", "directory") == []

    def test_pipe_is_not_opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("the pipe was opened"))
        with pytest.raises(InvalidArgumentError) as excinfo:
            read(path)
        assert unnamed(excinfo.value, path, "regular file") == []

    def test_empty_file(self, tmp_path: Path) -> None:
        path = tmp_path / "arm.urdf"
        path.touch()
        with pytest.raises(UrdfError) as excinfo:
            read(path)
        assert unnamed(excinfo.value, path, "text", "XML") == []

    def test_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "arm.urdf"
        path.write_text(robot(LINKS))

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        # By hand, since file modes do not stop root.
        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(PermissionDeniedError) as excinfo:
            read(path)
        assert unnamed(excinfo.value, path, "permission denied") == []

    @pytest.mark.parametrize(
        "path", ["a\0b.urdf", "x" * 5000, "\ud800.urdf"], ids=["zero byte", "too long", "surrogate"]
    )
    def test_impossible_path(self, path: str) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^the file .* cannot be opened: "):
            read(path)

    @pytest.mark.parametrize("source", ["", " \n", "\ufeff"])
    def test_empty_text(self, source: str) -> None:
        with pytest.raises(InvalidArgumentError) as excinfo:
            read(source)
        assert unnamed(excinfo.value, "source", "empty", "URDF", "XML") == []


class TestLimits:
    """A description beyond a limit is refused before it costs memory or time."""

    def test_size_is_held_before_reading(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "large.urdf"
        with path.open("wb") as file:
            file.truncate(ReadLimits().size + 1)
        monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("the file was opened"))
        with pytest.raises(ResourceExhaustedError) as excinfo:
            read_file(path)
        expected = "the robot description has more than 16777216 bytes of text, the maximum"
        assert str(excinfo.value) == f"{path}: {expected}"

    @pytest.mark.parametrize("source", [robot(LINKS), robot(LINKS).encode()], ids=["text", "bytes"])
    def test_size_of_text(self, source: str | bytes) -> None:
        assert read_text(robot('<link name="base"/>'), limits=ReadLimits(size=100)).name == "r"
        with pytest.raises(ResourceExhaustedError, match=naming("<text>", "50 bytes")):
            read_text(source, limits=ReadLimits(size=50))

    def test_size_counts_bytes(self) -> None:
        text = robot(f'<link name="{"é" * 100}"/>')
        assert read_text(text, limits=ReadLimits(size=len(text) + 100))
        with pytest.raises(ResourceExhaustedError):
            read_text(text, limits=ReadLimits(size=len(text) + 99))

    def test_depth(self) -> None:
        def nested(depth: int) -> str:
            return robot('<link name="base"/>\n' + "<g>" * depth + "</g>" * depth)

        assert read_text(nested(63))
        with pytest.raises(ResourceExhaustedError) as excinfo:
            read_text(nested(64))
        expected = "the robot description has elements nested more than 64 deep, the maximum"
        assert str(excinfo.value) == f"<text>:3: {expected}"

    def test_elements(self) -> None:
        limits = ReadLimits(elements=10)
        assert read_text(robot('<link name="base"/>' + "<gazebo/>" * 8), limits=limits)
        with pytest.raises(ResourceExhaustedError) as excinfo:
            read_text(robot('<link name="base"/>\n' + "<gazebo/>" * 9), limits=limits)
        expected = "the robot description has more than 10 elements, the maximum"
        assert str(excinfo.value) == f"<text>:3: {expected}"

    def test_attributes(self) -> None:
        def dressed(count: int) -> str:
            return robot('<link name="base"/>\n<gazebo ' + " ".join(f'a{i}=""' for i in range(count)) + "/>")

        assert read_text(dressed(64))
        with pytest.raises(ResourceExhaustedError) as excinfo:
            read_text(dressed(65))
        expected = "the robot description has an element of more than 64 attributes, the maximum"
        assert str(excinfo.value) == f"<text>:3: {expected}"

    def test_links(self) -> None:
        text = graph(["a", "b", "c"], ("j", "a", "b"), ("k", "b", "c"))
        assert len(read_text(text, limits=ReadLimits(links=3)).links) == 3
        with pytest.raises(ResourceExhaustedError) as excinfo:
            read_text(text, limits=ReadLimits(links=2))
        assert unnamed(excinfo.value, "<text>", "3 links", "2") == []


def test_every_fault_is_one_short_line() -> None:
    """Whatever a stranger's text holds, each fault stays one printable line of a few hundred characters."""
    sources = [fault[1] for fault in FAULTS]
    name = "x\u009b[31m" * 5000
    sources += [
        link(f'<inertial><mass value="{name}"/></inertial>'),
        robot(f'<link name="{name}"/>' * 2),
        f"<{'t' * 9999}/>",
    ]
    sources += [graph([f"{name}{i}" for i in range(20)], (name, f"{name}0", "nowhere"))]
    for source in sources:
        with pytest.raises(DynError) as excinfo:
            read_text(source)
        for text in str(excinfo.value).split("\n"):
            assert text.isprintable(), text[:500]
            assert 0 < len(text) < 400


@pytest.mark.parametrize("shift", range(3))
def test_a_loop_is_told_from_its_first_joint_on_whichever_link_comes_first(shift: int) -> None:
    joints = [("j1", "a", "b"), ("j2", "b", "c"), ("j3", "c", "a")]
    links = "".join(f'<link name="{name}"/>' for name in "abc"[shift:] + "abc"[:shift])
    text = f'<robot name="r">{links}\n' + "\n".join(
        f'<joint name="{name}" type="fixed"><parent link="{parent}"/><child link="{child}"/></joint>'
        for name, parent, child in joints
    )
    with pytest.raises(UrdfError) as excinfo:
        read_text(text + "</robot>")
    assert unnamed(excinfo.value, "<text>:2: joint 'j1'", "'b' -> 'c' -> 'a' -> 'b'") == []


def test_size_is_counted_in_bytes_and_the_fault_names_the_source() -> None:
    text = '<robot name="é"><link name="a"/></robot>'
    assert len(text.encode()) == len(text) + 1
    assert read_text(text, limits=ReadLimits(size=len(text) + 1)).name == "é"
    with pytest.raises(ResourceExhaustedError, match=naming("<text>", f"{len(text)} bytes")):
        read_text(text, limits=ReadLimits(size=len(text)))


def test_a_file_of_exactly_the_largest_size_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "robot.urdf"
    text = '<robot name="r"><link name="a"/></robot>'
    path.write_text(text)
    assert read_file(path, limits=ReadLimits(size=len(text))).name == "r"
    with pytest.raises(ResourceExhaustedError, match=naming("robot.urdf", f"{len(text) - 1} bytes")):
        read_file(path, limits=ReadLimits(size=len(text) - 1))


def test_blank_lines_before_the_xml_count() -> None:
    with pytest.raises(UrdfError, match=r"^<text>:4: malformed XML"):
        read_text('\n\n<robot name="r">\n<link name="a"></robot>')


def test_a_path_that_cannot_be_opened_is_told_in_the_words_of_the_system_alone() -> None:
    path = "x" * 5000
    with pytest.raises(InvalidArgumentError) as excinfo:
        read(path)
    assert str(excinfo.value) == f"the file '{path[:200]}' cannot be opened: {os.strerror(errno.ENAMETOOLONG)}"


def test_a_file_that_grows_while_it_is_looked_at_is_not_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut where the limit is, it would be another robot: this one without its comment."""
    path, text, limits = tmp_path / "robot.urdf", '<robot name="r"><link name="a"/></robot>', ReadLimits(size=40)
    assert len(text) == limits.size
    path.write_text(text)
    look = os.stat

    def grown(*arguments: Any, **options: Any) -> os.stat_result:
        status = look(*arguments, **options)
        path.write_text(text + "<!-- 2 -->")
        return status

    monkeypatch.setattr(markup.os, "stat", grown)
    with pytest.raises(ResourceExhaustedError, match="more than 40 bytes of text"):
        read_file(path, limits=limits)


def test_bytes_beyond_the_limit_are_not_decoded() -> None:
    with pytest.raises(ResourceExhaustedError, match=naming("<text>", "7 bytes")):
        read_text(b"<robot \xff", limits=ReadLimits(size=7))


def test_one_error_lists_the_faults_of_all_elements_each_with_its_place() -> None:
    text = robot(
        '<link name="base"/>\n<link name="arm"><inertial><mass value="-1"/></inertial></link>\n'
        '<joint name="j" type="hinge"><parent link="base"/><child link="arm"/></joint>\n'
        '<joint name="k" type="fixed"><parent link="base"/><chld link="arm"/></joint>'
    )
    with pytest.raises(UrdfError) as excinfo:
        read_text(text)
    error = excinfo.value
    assert str(error).splitlines() == [
        "<text>:3: link 'arm' inertial mass: the mass is -1 kg, expected zero or more",
        f"<text>:4: joint 'j': the type 'hinge' is unknown, expected {TYPES}",
        "<text>:5: joint 'k': there is no <child> element, expected one; line 5: <chld> element in <joint> is not "
        "used; did you mean <child>?",
    ]
    assert (error.line, error.element) == (3, "link 'arm' inertial mass")
    assert str(from_wire(error.to_wire())) == str(error)


def test_names_and_ends_are_listed_too() -> None:
    links = ["a", "b", "c", "b", "a"]
    with pytest.raises(UrdfError) as excinfo:
        read_text(graph(links))
    assert [line.partition(" is ")[0] for line in str(excinfo.value).splitlines()] == [
        "<text>:5: link 'b': a link of this name",
        "<text>:6: link 'a': a link of this name",
    ]
    with pytest.raises(UrdfError) as excinfo:
        read_text(graph(["a", "b"], ("j", "a", "x"), ("k", "y", "b"), ("l", "a", "a")))
    assert [line.partition(": the ")[0] for line in str(excinfo.value).splitlines()] == [
        "<text>:4: joint 'j'",
        "<text>:5: joint 'k'",
        "<text>:6: joint 'l'",
    ]


def test_the_list_of_faults_ends() -> None:
    with pytest.raises(UrdfError) as excinfo:
        read_text(robot("<link/>\n" * 500))
    lines = str(excinfo.value).splitlines()
    assert len(lines) == MAX_FAULTS + 1
    assert lines[-2:] == [
        f"<text>:{MAX_FAULTS + 1}: link: the attribute 'name' is missing",
        f"further faults after these {MAX_FAULTS} are not looked for",
    ]
