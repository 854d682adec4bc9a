"""SDFormat that is refused: each fault with its file, line and element; and the notes on elements without effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from dyn_service.errors import DynError, ResourceExhaustedError, UrdfError
from dyn_service.parsing.files import read_file, read_text
from dyn_service.parsing.xml_elements import ReadLimits
from tests.phrases import unnamed

LINKS = '<link name="a"/>\n<link name="b"/>'


def sdf(*parts: str, version: str = "1.11") -> str:
    content = "\n".join(parts)
    return f'<sdf version="{version}"><model name="m">\n{content}\n</model></sdf>'


def jointed(
    axis: str = "<axis><xyz>0 0 1</xyz></axis>", kind: str = "revolute", version: str = "1.11", elements: str = ""
) -> str:
    joint = f'<joint name="j" type="{kind}"><parent>a</parent><child>b</child>{axis}</joint>'
    return sdf(LINKS, joint, elements, version=version)


FAULTS = {
    '<sdf version="1.9"/>': ["<text>:1: sdf", "0", "models"],
    '<sdf/>': ["<text>:1: sdf", "0", "models"],
    '<sdf version="x"><model name="m"/></sdf>': ["<text>:1: sdf", "'version'", "1.9"],
    '<sdf version="1.9"><model name="a"/><model name="b"/></sdf>': ["<text>:1: sdf", "2", "'a'", "'b'"],
    '<sdf version="1.9"><model/></sdf>': ["<text>:1: model", "''"],
    sdf(): ["<text>:1: robot 'm'", "links", "least"],
    sdf("<link/>"): ["<text>:2: link", "''"],
    sdf('<link name="a"/><link name="a"/>'): ["<text>:2: link 'a'", "'a'", "2", "already"],
    sdf('<link name="a"/><joint name="a" type="fixed"><parent>a</parent><child>b</child></joint>'):
        ["<text>:2: joint 'a'", "'a'", "2"],
    sdf('<link name="world"/>'): ["<text>:2: link 'world'", "'world'", "SDFormat"],
    sdf('<link name="a"/><model name="n"><frame name="world"/></model>'):
        ["<text>:2: frame 'n::world'", "'world'", "SDFormat"],
    sdf('<link name="__model__"/>'): ["<text>:2: link '__model__'", "'__model__'", "SDFormat"],
    sdf(LINKS): ["<text>:3: link 'b'", "2", "'a'", "'b'"],
    sdf('<link name="a"><pose>1 2 3</pose></link>'):
        ["<text>:2: link 'a' pose", "'pose'", "6", "3", "'1 2 3'"],
    sdf('<link name="a"><pose>1 2 3 nan 0 0</pose></link>'):
        ["<text>:2: link 'a' pose", "'pose'", "6", "'1 2 3 nan 0 0'"],
    sdf('<link name="a"><pose rotation_format="matrix">1 2 3 0 0 0</pose></link>'):
        ["<text>:2: link 'a' pose", "'rotation_format'", "euler_rpy", "quat_xyzw", "'matrix'"],
    sdf('<link name="a"><pose rotation_format="quat_xyzw">1 2 3 0 0 0 0</pose></link>'):
        ["<text>:2: link 'a' pose", "'quat_xyzw'", "(0, 0, 0, 0)"],
    sdf('<link name="a"><pose/><pose/></link>'): ["<text>:2: link 'a'", "2", "<pose>", "elements"],
    sdf(f'<link name="a"><pose>{"1" * 300}</pose></link>'):
        ["<text>:2: link 'a' pose", "<pose>", "200"],
    sdf('<link name="a"><pose relative_to="c"/></link>'): ["<text>:2: link 'a'", "'c'"],
    sdf('<link name="a"><pose relative_to="b"/></link><link name="b"><pose relative_to="a"/></link>'):
        ["<text>:2: link 'a'", "'a'", "'b'"],
    sdf('<link name="a"/><frame name="f" attached_to="g"/><frame name="g" attached_to="f"/>'):
        ["<text>:2: frame 'f'", "'f'", "'g'", "relative"],
    sdf('<link name="a"/><frame name="f" attached_to="g"><pose relative_to="a"/></frame><frame name="g" '
         'attached_to="f"><pose '
         'relative_to="a"/></frame>'):
        ["<text>:2: frame 'f'", "'f'", "'g'", "attached"],
    sdf('<link name="a"><inertial><mass>-1</mass></inertial></link>'):
        ["<text>:2: link 'a' inertial", "-1"],
    sdf('<link name="a"><inertial><mass>1e999</mass></inertial></link>'):
        ["<text>:2: link 'a' inertial mass", "'mass'", "'1e999'"],
    sdf('<link name="a"><inertial auto="true"/></link>'):
        ["<text>:2: link 'a' inertial", "auto=", "0"],
    sdf('<link name="a"><inertial auto="true"/><collision name="c"><geometry><plane/></geometry></collision></link>'):
        ["<text>:2: link 'a' inertial collision", "sphere, capsule, ellipsoid, cylinder, box, mesh"],
    sdf('<link name="a"><inertial auto="true"/><collision '
         'name="c"><geometry><sphere><radius>0</radius></sphere></geometry>'
         "</collision></link>"): ["<text>:2: link 'a' inertial collision", "<sphere>"],
    sdf('<link name="a"><gravity>perhaps</gravity></link>'):
        ["<text>:2: link 'a'", "<gravity>", "'perhaps'"],
    jointed(kind="revolut"): ["<text>:4: joint 'j'", "'revolut'", "'revolute'"],
    jointed(""): ["<text>:4: joint 'j'", "<axis>"],
    jointed(kind="universal"): ["<text>:4: joint 'j'", "<axis2>"],
    jointed("<axis><xyz>0 0 0</xyz></axis>"):
        ["<text>:4: joint 'j' axis", "(0, 0, 0)"],
    jointed('<axis><xyz expressed_in="c">0 0 1</xyz></axis>'):
        ["<text>:4: joint 'j' axis", "'c'"],
    jointed(kind="screw"): ["<text>:4: joint 'j'", "<screw_thread_pitch>"],
    sdf(LINKS, '<joint name="j" type="fixed"><parent>a</parent></joint>'):
        ["<text>:4: joint 'j'", "<parent>", "<child>"],
    sdf(LINKS, '<joint name="j" type="fixed"><parent>c</parent><child>b</child></joint>'):
        ["<text>:4: joint 'j' parent", "'c'"],
    sdf(LINKS, '<joint name="j" type="fixed"><parent>a</parent><child>a</child></joint>'):
        ["<text>:4: joint 'j'", "'a'"],
    sdf('<include><uri>a.sdf</uri></include>'):
        ["<text>:2: include", "'a.sdf'"],
    '<!DOCTYPE a [<!ENTITY b "c">]><sdf version="1.9"/>': ["<text>:1", "<!DOCTYPE>"],
}  # fmt: skip


@pytest.mark.parametrize("text", FAULTS)
def test_fault(text: str) -> None:
    with pytest.raises(UrdfError) as excinfo:
        read_text(text)
    assert unnamed(excinfo.value, *FAULTS[text]) == []


TOLD = {
    jointed(elements='<joint name="g" type="gearbox"><parent>a</parent><child>b</child></joint>'): (
        "joint 'g'",
        "gearbox: ignored",
    ),
    jointed(elements='<joint name="k" type="universal"><parent>a</parent><child>b</child></joint>'): (
        "joint 'k'",
        "closes a loop",
    ),
    jointed(elements='<plugin name="p"/>'): ("robot 'm'", "1 plugin"),
    jointed().replace('"b"/>', '"b"><gravity>false</gravity></link>'): ("link 'b'", "gravity is false"),
    jointed().replace('"b"/>', '"b"><velocity_decay/></link>'): ("link 'b'", "velocity_decay"),
    jointed().replace('"b"/>', '"b"><inertial><fluid_added_mass><xx>3</xx></fluid_added_mass></inertial></link>'): (
        "link 'b' inertial",
        "<fluid_added_mass>",
    ),
}


@pytest.mark.parametrize("text", TOLD)
def test_what_does_not_act_is_told(text: str) -> None:
    element, words = TOLD[text]
    notes = [note for note in read_text(text).notes if note.kind in ("reported", "loop")]
    assert [(note.element, words in note.text) for note in notes] == [(element, True)]
    assert notes[0].line


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"main.sdf": sdf("<include><uri>main.sdf</uri></include>")}, "the file 'main.sdf' is included in itself"),
        (
            {
                "main.sdf": sdf("<include><uri>a.sdf</uri></include>"),
                "a.sdf": sdf("<include><uri>b.sdf</uri></include>"),
                "b.sdf": sdf("<include><uri>a.sdf</uri></include>"),
            },
            "b.sdf:2: include: the file 'a.sdf' is included in itself",
        ),
        ({"main.sdf": sdf("<include><uri>a%00</uri></include>")}, ":2: include: cannot include 'a\\x00'"),
        ({"main.sdf": sdf("<include><uri>.</uri></include>")}, ":2: include: '.' is not supported"),
        ({"main.sdf": sdf("<include><uri>..</uri></include>")}, ":2: include: there is no file 'model.sdf' to include"),
        ({"main.sdf": sdf("<include><uri>no.sdf</uri></include>")}, "there is no file 'no.sdf' to include"),
        (
            {"main.sdf": sdf("<include><uri>model://arm</uri></include>")},
            "there is no model 'model://arm' in the folders of",
        ),
        ({"main.sdf": sdf("<include><uri>model://a%00</uri></include>")}, "there is no model 'model://a%00'"),
        ({"main.sdf": sdf("<include/>")}, "'' is not supported"),
        (
            {
                "main.sdf": '<sdf version="1.9"><include merge="1"><uri>a.sdf</uri></include></sdf>',
                "a.sdf": sdf('<link name="a"/>'),
            },
            "model: merge is read in an <include> that is in a <model>, not elsewhere",
        ),
        (
            {"main.sdf": sdf("<include><uri>a.sdf</uri></include>"), "a.sdf": "<robot/>"},
            "a.sdf:1: robot: found 0 models",
        ),
        (
            {
                "main.sdf": sdf("<include><uri>a.sdf</uri></include>"),
                "a.sdf": '<sdf><model name="a"><link/></model></sdf>',
            },
            "a.sdf:1: link: the name is ''",
        ),
    ],
)
def test_faults_across_files(files: dict[str, str], words: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DynError) as excinfo:
        read_file(tmp_path / "main.sdf")
    assert words in str(excinfo.value)


@pytest.mark.parametrize(
    ("misspelt", "words"),
    [
        (
            "<dynamics><dampng>3</dampng></dynamics>",
            "1 <dampng> element in <dynamics> is not used; did you mean <damping>?",
        ),
        ("<limit><lowr>3</lowr></limit>", "1 <lowr> element in <limit> is not used; did you mean <lower>?"),
        (
            '<mimic joint="j"><offst>3</offst></mimic>',
            "1 <offst> element in <mimic> is not used; did you mean <offset>?",
        ),
    ],
)
def test_what_is_misspelt_is_doubted(misspelt: str, words: str) -> None:
    text = jointed().replace("</axis>", f"{misspelt}</axis>").replace('joint="j"', 'joint="i"')
    assert misspelt.replace('"j"', '"i"') in text
    assert words in [note.text for note in read_text(text).notes if note.kind == "warning"]
    with_inertial = jointed().replace(
        '"b"/>', '"b"><inertial><mas>3</mas><inertia><ixxx>2</ixxx></inertia></inertial></link>'
    )
    note_texts = [note.text for note in read_text(with_inertial).notes]
    for tag in ("<mas>", "<ixxx>"):
        assert any(tag in text for text in note_texts)


def test_limits() -> None:
    for limits in (
        ReadLimits(links=1),
        ReadLimits(joints=0),
        ReadLimits(elements=5),
        ReadLimits(depth=3),
        ReadLimits(size=50),
    ):
        with pytest.raises(ResourceExhaustedError):
            read_text(jointed(), limits=limits)


def test_one_error_lists_the_faults_of_links_and_joints() -> None:
    mass = "<inertial><mass>-1</mass></inertial>"
    with pytest.raises(UrdfError) as excinfo:
        read_text(
            '<sdf version="1.9"><model name="m"><link name="a"><pose>0 0</pose></link>\n'
            '<link name="b"/>\n<joint name="j" type="revolute"><parent>a</parent></joint></model></sdf>'
        )
    assert [line.split(": ")[:2] for line in str(excinfo.value).splitlines()] == [
        ["<text>:1", "link 'a' pose"],
        ["<text>:3", "joint 'j'"],
    ]
    with pytest.raises(UrdfError) as excinfo:
        read_text(
            f'<sdf version="1.9"><model name="m">\n<link name="a">{mass}</link>\n<link name="b">{mass}</link>'
            '<joint name="j" type="fixed"><parent>a</parent><child>b</child></joint></model></sdf>'
        )
    assert [line.split(": ")[:2] for line in str(excinfo.value).splitlines()] == [
        ["<text>:2", "link 'a' inertial"],
        ["<text>:3", "link 'b' inertial"],
    ]
