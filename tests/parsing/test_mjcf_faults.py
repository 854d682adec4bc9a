"""MJCF that is refused: each fault with its file, line and element; and the notes on elements without effect."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import mujoco
import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, ResourceExhaustedError, UrdfError
from dyn_service.parsing.files import read_file, read_text
from dyn_service.parsing.xml_elements import ReadLimits
from tests.oracle.mujoco_models import errors
from tests.oracle.test_pinocchio import TOLERANCE
from tests.phrases import naming, unnamed

BALL = '<geom size="0.1" pos="0.1 0 0"/>'


def mjcf(body: str, head: str = "", tail: str = "") -> str:
    return f'<mujoco model="m">\n{head}\n<worldbody>\n{body}\n</worldbody>\n{tail}\n</mujoco>'


def jointed(joint: str = "", geom: str = BALL, **parts: str) -> str:
    return mjcf(f'<body name="b">\n<joint name="j" {joint}/>\n{geom}\n</body>', **parts)


FAULTS = {
    '<mujoco model="m"/>': ["<text>:1: robot 'm'", "<worldbody>"],
    "<mujoco>": ["<text>:1", "XML", "9", "<mujoco>", "1"],
    '<!DOCTYPE a [<!ENTITY b "c">]><mujoco/>': ["<text>:1", "<!DOCTYPE>"],
    mjcf('<joint name="j"/>'): ["<text>:4: worldbody joint", "<joint>", "<worldbody>", "<body>"],
    mjcf('<body name="b"><joint/><inertial pos="0 0 0" diaginertia="1 1 1"/></body>'):
        ["<text>:4: link 'b' inertial", "'mass'"],
    mjcf('<body name="b"><joint/><inertial mass="1" diaginertia="1 1 1"/></body>'):
        ["<text>:4: link 'b' inertial", "'pos'", "missing"],
    mjcf('<body name="b"><joint/><inertial pos="0 0 0" mass="-1" diaginertia="1 1 1"/></body>'):
        ["<text>:4: link 'b' inertial", "-1"],
    mjcf('<body name="b"><joint/><inertial pos="0 0 0" mass="1"/></body>'):
        ["<text>:4: link 'b' inertial", "diaginertia", "fullinertia"],
    mjcf('<body name="b"><inertial pos="0 0 0" mass="1" quat="0 1 0 0" fullinertia="1 1 1 0 0 0"/></body>'):
        ["<text>:4: link 'b' inertial", "fullinertia", "orientation"],
    mjcf('<body name="b"><inertial pos="0 0" mass="1" diaginertia="1 1 1"/></body>'):
        ["<text>:4: link 'b' inertial", "'pos'", "3", "2", "'0 0'"],
    mjcf('<body name="b" quat="0 0 0 0"/>'):
        ["<text>:4: link 'b'", "'quat'"],
    mjcf('<body name="b" euler="1 2 3" zaxis="1 0 0"/>'):
        ["<text>:4: link 'b'", "zaxis", "orientation"],
    mjcf('<body name="b" xyaxes="1 0 0 2 0 0"/>'):
        ["<text>:4: link 'b' xyaxes", "(0, 0, 0)"],
    mjcf('<body name="b" euler="1 2 3"/>', '<compiler eulerseq="xyw"/>'):
        ["<text>:2: robot 'm' compiler", "'eulerseq'", "'xyw'"],
    mjcf("", '<compiler coordinate="global"/>'):
        ["<text>:2: robot 'm' compiler", "coordinate", "'global'", "MuJoCo", "'local'"],
    mjcf("", '<compiler angle="grad"/>'):
        ["<text>:2: robot 'm' compiler", "'angle'", "'grad'", "'radian'"],
    jointed('axis="0 0 0"'): ["<text>:5: joint 'j' axis", "(0, 0, 0)"],
    jointed('type="hing"'):
        ["<text>:5: joint 'j'", "'type'", "'hing'", "'hinge'"],
    jointed('damping="nan"'):
        ["<text>:5: joint 'j'", "'damping'", "'nan'"],
    jointed('armature="1e999"'):
        ["<text>:5: joint 'j'", "'armature'", "'1e999'"],
    jointed('damping="-1"'): ["<text>:5: joint 'j'", "-1", "damping"],
    jointed('armature="-1"'): ["<text>:5: joint 'j'", "-1", "armature"],
    jointed('frictionloss="-1"'): ["<text>:5: joint 'j'", "-1", "frictionloss"],
    jointed('limited="true"'): ["<text>:5: joint 'j'", "limited", "true"],
    jointed('range="0 1"', head='<compiler autolimits="false"/>'):
        ["<text>:5: joint 'j'", "autolimits="],
    jointed('class="soft"', head='<default><default class="soften"/></default>'):
        ["<text>:5: joint 'j'", "'soft'", "'soften'"],
    jointed(head='<default><default/></default>'):
        ["<text>:2: default", "nested", "defaults"],
    jointed(head='<default><default class="a"/><default class="a"/></default>'):
        ["<text>:2: default", "'a'"],
    jointed(geom='<geom type="mesh" mesh="x"/>'):
        ["<text>:6: link 'b' geom", "'x'", "<asset>"],
    jointed(geom='<geom type="box" mesh="x"/>'):
        ["<text>:6: link 'b' geom", "<inertial>"],
    jointed(geom='<geom type="box" size="1 2"/>'):
        ["<text>:6: link 'b' geom", "'size'", "3", "1", "2"],
    jointed(geom='<geom size="-1"/>'):
        ["<text>:6: link 'b' geom", "'size'", "1", "-1"],
    jointed(geom='<geom size="1" mass="-2"/>'): ["<text>:6: link 'b' geom", "-2", "mass"],
    jointed(geom='<geom size="1" density="-2"/>'): ["<text>:6: link 'b' geom", "-2", "density"],
    jointed(geom='<geom type="capsule" size="0.1" fromto="1 1 1 1 1 1"/>'):
        ["<text>:6: link 'b' geom", "'fromto'"],
    mjcf('<body name="a"><body name="b"><freejoint/></body></body>'):
        ["<text>:4: link 'b'", "parent", "without"],
    mjcf('<body name="b"/><body name="b"/>'): ["<text>:4: link 'b'", "4", "already"],
    mjcf('<body name="world"/>'): ["<text>:4: link 'world'", "already", "defined"],
    mjcf('<body name="a"><joint name="j"/></body><body name="b"><joint name="j"/></body>'):
        ["<text>:4: joint 'j'", "4"],
    mjcf('<body name="b"><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/><inertial pos="0 0 0" mass="1" '
         'diaginertia="1 1 1"/></body>'): ["<text>:4: link 'b' inertial", "<inertial>", "4"],
    mjcf('<replicate count="2.5"><body/></replicate>'):
        ["<text>:4", "<replicate>", "'count'", "1", "2.5"],
    mjcf('<frame scale="2"><body/></frame>'):
        ["<text>:4: worldbody frame", "'scale'"],
    mjcf('<include file="a.xml"/>'):
        ["<text>:4: include", "'a.xml'"],
    jointed(tail='<equality><joint joint1="j" joint2="k"/></equality>'):
        ["<text>:9", "<joint>", "'k'"],
    jointed(tail='<actuator><motor joint="j" gear="a"/></actuator>'):
        ["<text>:9", "<motor>", "'gear'", "'a'"],
}  # fmt: skip


@pytest.mark.parametrize("text", FAULTS)
def test_fault(text: str) -> None:
    with pytest.raises(UrdfError) as excinfo:
        read_text(text)
    assert unnamed(excinfo.value, *FAULTS[text]) == []


TOLD = {
    jointed('stiffness="1 2 3"'): ("joint 'j'", "stiffness: the quadratic and cubic terms are ignored"),
    jointed('springdamper="1 1" stiffness="3" damping="2"'): ("joint 'j'", "springdamper: ignored"),
    jointed('stiffness="3" springyield="1"'): ("joint 'j'", "springyield"),
    jointed('stiffness="3" springdamper="1 0"'): ("joint 'j'", "springdamper: ignored"),
    jointed('type="ball" stiffness="3"'): ("joint 'j'", "stiffness 3 N m/rad is ignored"),
    jointed('type="ball" range="0 1"'): ("joint 'j'", "range: ignored on ball joints"),
    jointed('actuatorfrcrange="-1 2"'): ("joint 'j'", "actuatorfrcrange -1 to 2: ignored"),
    jointed('type="free" armature="1"'): ("joint 'j'", "armature 1 is ignored: not supported on free joints"),
    mjcf(f'<body name="b" gravcomp="1"><joint/>{BALL}</body>'): ("link 'b'", "gravcomp 1"),
    mjcf('<body name="b" mocap="true"/>'): ("link 'b'", "a mocap body"),
    mjcf(f'<body name="b"><freejoint align="true"/>{BALL}</body>'): ("joint 'joint_0'", "align"),
    mjcf(f'<body name="b"><freejoint/>{BALL}</body>', '<compiler alignfree="true"/>'): ("joint 'joint_0'", "align"),
    mjcf('<body name="b"><geom type="mesh" mesh="x"/></body>'): ("link 'b' geom", "read without mass"),
    jointed(tail='<tendon><spatial name="t"/></tendon>'): ("tendon 't'", "not supported; its forces are ignored"),
    jointed(tail='<equality><weld body1="b"/></equality>'): ("equality <weld>", "closes a loop exactly"),
    jointed(tail='<equality><tendon tendon1="t"/></equality>'): ("equality <tendon>", "it joins 't'"),
    jointed(tail='<equality><joint joint1="j"/></equality>'): ("equality <joint>", "it locks joint 'j'"),
    jointed(tail='<equality><joint joint1="j" joint2="j"/></equality>'): ("equality <joint>",
        "joint 'j' cannot follow 'j'"),
    jointed(tail='<equality><joint joint1="j" active="false"/></equality>'): ("equality <joint>",
        "ignored: not active"),
    jointed(tail='<actuator><motor name="a" joint="j" gear="3"/></actuator>'): ("actuator 'a'", "on joint 'j', gear 3"),
    jointed(tail='<actuator><motor joint="j" armature="3" gear="1e160"/></actuator>'): ("actuator <motor>",
        "its armature is ignored: expected one finite number"),
    jointed(tail='<actuator><general site="s" armature="3"/></actuator>'): ("actuator <general>", "its armature "
        "is ignored"),
    jointed(tail='<extension><plugin plugin="p"/></extension>'): ("extension", "<plugin>"),
    jointed(tail='<option wind="1 0 0"/>'): ("option", "wind"),
    jointed(tail='<option viscosity="1"/>'): ("option", "viscosity"),
    jointed(tail='<option><flag damper="disable"/></option>'): ("option flag", "damper disabled"),
}  # fmt: skip


@pytest.mark.parametrize("text", TOLD)
def test_what_does_not_act_is_told(text: str) -> None:
    element, words = TOLD[text]
    notes = [note for note in read_text(text).notes if note.kind in ("reported", "dropped", "changed", "loop")]
    assert [note.element for note in notes if words in note.text] == [element]
    assert all(note.line for note in notes)


def test_nothing_goes_without_a_word() -> None:
    """Every element and attribute that MuJoCo knows is read, or has a note."""
    text = mjcf(
        '<body name="b" user="1"><joint name="j" margin="1" dumping="3"/><geom '
        'size="0.1"/><site/><camera/><light/></body>',
        "<custom/><visual/><statistic/><size/><asset><mesh/><mesh/></asset><zzz/>",
        "<contact><pair/></contact><sensor><clock/></sensor><keyframe><key/></keyframe>",
    )
    notes = [(note.kind, note.text) for note in read_text(text).notes]
    for words in (
        "custom",
        "visual",
        "statistic",
        "size",
        "2 looks and shapes",
        "contact",
        "sensor",
        "keyframe",
        "zzz",
    ):
        assert any(words in text_of_note and kind == "dropped" for kind, text_of_note in notes), words
    assert ("warning", "1 attribute 'dumping' of <joint> is not used; did you mean 'damping'?") in notes
    misspelt = read_text(mjcf('<Body name="b"><joint name="j"/></Body><body name="c"/>')).notes
    assert any("1 <Body> element in <worldbody> is not used" in note.text for note in misspelt)


def test_one_joint_follows_another() -> None:
    text = mjcf(
        f'<body><joint name="j" ref="0.5" type="slide"/>{BALL}</body><body><joint name="k" ref="0.25" '
        f'type="slide"/>{BALL}</body>',
        tail='<equality><joint joint1="j" joint2="k" polycoef="0.1 3"/></equality>',
    )
    mimic = next(joint.mimic for joint in read_text(text).joints if joint.name == "j")
    assert mimic is not None
    assert (mimic.joint, mimic.multiplier, mimic.offset) == ("k", 3.0, pytest.approx(0.5 + 0.1 - 3 * 0.25))


def test_names_like_those_of_what_has_none() -> None:
    text = mjcf(f'<body name="body_2"><joint name="joint_1"/>{BALL}<body><joint/>{BALL}</body></body>')
    description = read_text(text)
    assert [link.name for link in description.links] == ["world", "body_2", "body_2_2"]
    assert [joint.name for joint in description.joints] == ["joint_1", "joint_1_2"]


def test_limits_in_radians() -> None:
    joint = read_text(jointed('range="-90 180" actuatorfrcrange="-7 7"')).joints[0]
    assert joint.limit is not None
    assert (joint.limit.lower, joint.limit.upper) == (
        pytest.approx(-1.5707963267948966),
        pytest.approx(3.141592653589793),
    )
    assert joint.limit.effort == 7.0
    assert read_text(jointed('range="-1 1"', head='<compiler angle="radian"/>')).joints[0].limit.lower == -1.0  # type: ignore[union-attr]
    assert read_text(jointed('range="-1 1" limited="false"')).joints[0].limit is None


@pytest.mark.parametrize(("ends", "is_refused"), [("0 0", False), ("20 20", True), ("10 20", True)])
def test_a_range_without_room_and_autolimits(ends: str, is_refused: bool) -> None:
    """As MuJoCo has it: equal ends are no limit; without autolimits only the default, 0 0, is no mistake."""
    free = jointed(f'range="{ends}"')
    assert (read_text(free).joints[0].type, bool(mujoco.MjModel.from_xml_string(free).jnt_limited[0])) == (
        ("revolute", True) if ends == "10 20" else ("continuous", False)
    )
    text = jointed(f'range="{ends}"', head='<compiler autolimits="false"/>')
    for read, fault in ((read_text, UrdfError), (mujoco.MjModel.from_xml_string, ValueError)):
        with pytest.raises(fault) if is_refused else nullcontext():
            read(text)


def test_links_between_the_joints_of_a_body_have_no_warning() -> None:
    text = mjcf(f'<body name="b"><joint name="j"/><joint name="k" axis="1 0 0"/>{BALL}</body>')
    assert not [note for note in read_text(text).notes if note.kind == "warning"]


def test_a_rest_position_without_a_spring_is_none() -> None:
    assert read_text(jointed('springref="30"')).joints[0].rest == 0.0
    assert read_text(jointed('springref="30" stiffness="1"')).joints[0].rest == pytest.approx(np.pi / 6)


def test_a_robot_in_several_files(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "arm.xml").write_text(
        '<mujocoinclude><body name="b" pos="0 0 1"><include file="deeper.xml"/><include '
        'file="parts/joint.xml"/></body></mujocoinclude>'
    )
    (tmp_path / "parts" / "deeper.xml").write_text(f"<mujoco>{BALL}</mujoco>")
    (tmp_path / "parts" / "joint.xml").write_text('<mujoco>\n<joint name="j" axis="1 2 3" springyield="1"/></mujoco>')
    main = tmp_path / "main.xml"
    main.write_text('<mujoco><worldbody><include file="parts/arm.xml"/></worldbody></mujoco>')
    description = read_file(main)
    assert [joint.name for joint in description.joints] == ["j"]
    spring_note = next(note for note in description.notes if "springyield" in note.text)
    assert spring_note.element == f"{tmp_path / 'parts' / 'joint.xml'}:2: joint 'j'"
    assert description.joints[0].line == 0
    model = mujoco.MjModel.from_xml_path(str(main))
    assert max(errors(main, model).values()) <= TOLERANCE


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"main.xml": '<mujoco>\n<include file="main.xml"/></mujoco>'}, ":2: include: the file 'main.xml' is "
            "included a second"),
        ({"main.xml": '<mujoco><include file="a.xml"/></mujoco>', "a.xml": '<mujoco><include file="b.xml"/></mujoco>',
          "b.xml": '<mujoco><include file="a.xml"/></mujoco>'}, "{at}/b.xml:1: include: the file 'a.xml' is "
              "included a second"),
        ({"main.xml": '<mujoco><include file="no.xml"/></mujoco>'}, "there is no file 'no.xml' to include"),
        ({"main.xml": "<mujoco><include/></mujoco>"}, "the attribute 'file' is missing"),
        ({"main.xml": '<mujoco><include file="a.xml"/></mujoco>', "a.xml": "<robot/>"}, "the root element is "
            "'robot', expected <mujoco>"),
        ({"main.xml": '<mujoco><include file="a.xml"/></mujoco>', "a.xml": '<!DOCTYPE a [<!ENTITY b SYSTEM '
            '"/etc/passwd">]><mujoco/>'},
         "{at}/a.xml:1: found a document type declaration"),
        ({"main.xml": '<mujoco><include file="."/></mujoco>'}, "is a directory; expected a robot's file"),
        ({"main.xml": '<mujoco>\n<include file="' + 5000 * "a" + '"/></mujoco>'}, "main.xml:2: include: cannot include "
            "'aaaa"),
        ({"main.xml": '<mujoco><worldbody><include file="a.xml"/></worldbody></mujoco>', "a.xml": '<mujoco>\n\n'
          '<body name="x" quat="0 0 0 0"/></mujoco>'},
         "{at}/a.xml:3: link 'x': attribute 'quat'"),
    ],
)  # fmt: skip
def test_faults_across_files(files: dict[str, str], words: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DynError) as excinfo:
        read_file(tmp_path / "main.xml")
    assert words.replace("{at}", str(tmp_path)) in str(excinfo.value)


def test_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop.xml").symlink_to("loop.xml")
    (tmp_path / "main.xml").write_text('<mujoco>\n<include file="loop.xml"/></mujoco>')
    with pytest.raises(UrdfError, match=naming("main.xml:2", "'loop.xml'", "symbolic links")):
        read_file(tmp_path / "main.xml")


def test_limits_hold_for_all_files_together(tmp_path: Path) -> None:
    body = f"<mujoco>{'<body/>' * 40}</mujoco>"
    for k in range(3):
        (tmp_path / f"{k}.xml").write_text(body)
    main = tmp_path / "main.xml"
    main.write_text(
        "<mujoco><worldbody>" + "".join(f'<include file="{k}.xml"/>' for k in range(3)) + "</worldbody></mujoco>"
    )
    assert len(read_file(main).links) == 121
    for limits in (ReadLimits(elements=100), ReadLimits(size=len(body) * 2), ReadLimits(links=100)):
        with pytest.raises(ResourceExhaustedError):
            read_file(main, limits=limits)


def test_chains_of_hundreds_of_bodies() -> None:
    """They are nested more deeply than elements of URDF; deeper nesting is refused."""

    def chain(n: int) -> str:
        return mjcf("".join(f'<body><joint axis="0 {k % 2} 1"/>{BALL}' for k in range(n)) + "</body>" * n)

    assert len(read_text(chain(900)).joints) == 900
    with pytest.raises(ResourceExhaustedError, match="nested more than 1000 deep"):
        read_text(chain(1000))


def test_no_link_without_need() -> None:
    """Where a joint slides is all the same, and one at its body's origin needs none either."""
    for joint, links in (('type="slide" pos="1 2 3"', 2), ('pos="0 0 0"', 2), ('pos="1 2 3"', 3)):
        assert len(read_text(jointed(joint)).links) == links


def test_a_walking_robot_that_is_free() -> None:
    legs = "".join(f'<body name="foot_{k}"><joint name="h{k}"/><joint name="k{k}"/>{BALL}</body>' for k in range(2))
    free = read_text(mjcf(f'<body name="trunk"><freejoint/>{BALL}{legs}</body>'))
    fixed = read_text(mjcf(f'<body name="trunk">{BALL}{legs}</body>'))
    assert not any(" legs (" in note.text for note in free.notes)
    assert any(" legs (" in note.text for note in fixed.notes)


def test_it_is_a_robot_like_any_other() -> None:
    robot = Robot.from_text(jointed('axis="0 1 0" damping="3"'))
    assert robot.joint_names == ("j",)
    assert robot.receipt.of_kind("acting")[0].text == "damping 3 N m s/rad"
    assert not [note for note in robot.receipt.of_kind("warning") if "no mass" in note.text]


def test_bounds_that_are_kept_change_nothing_and_say_nothing() -> None:
    text = (
        '<mujoco><compiler boundmass="2" boundinertia="0.01"/><worldbody><body><joint/>'
        '<inertial pos="0 0 0" mass="2" diaginertia="0.01 0.02 0.02"/></body></worldbody></mujoco>'
    )
    assert not [note for note in read_text(text).notes if "raised" in note.text]
    raised = [
        note.text for note in read_text(text.replace('"2" bound', '"2.5" bound').replace("0.01 ", "0.005 ")).notes
    ]
    assert [text for text in raised if "raised" in text] == [
        "mass 2 raised to 2.5 kg by boundmass",
        "moments of inertia raised to 0.01 kg m^2 by boundinertia",
    ]


def test_copies_are_counted_before_they_are_made() -> None:
    """A thousand of a thousand of a thousand would be a billion elements."""
    text = mjcf('<replicate count="1000">' * 3 + "<body/>" + "</replicate>" * 3)
    with pytest.raises(ResourceExhaustedError, match="more than 50000 elements"):
        read_text(text)


def test_names_of_copies() -> None:
    text = mjcf('<replicate count="10" sep="_" offset="1 0 0"><body name="b"><joint name="j"/></body></replicate>')
    assert [link.name for link in read_text(text).links[1:]] == [f"b_{k:02d}" for k in range(10)]


def test_one_error_lists_the_faults_of_bodies_shapes_and_joints() -> None:
    text = mjcf(
        '<body name="a"><joint name="j" axis="0 0 0"/><geom size="0.1" mass="-1"/></body>\n'
        '<body name="b"><joint name="k" type="screw"/><geom size="-0.1"/></body>'
    )
    with pytest.raises(UrdfError) as excinfo:
        read_text(text)
    assert [line.split(": ")[:2] for line in str(excinfo.value).splitlines()] == [
        ["<text>:4", "link 'a' geom"],
        ["<text>:5", "link 'b' geom"],
        ["<text>:4", "joint 'j' axis"],
        ["<text>:5", "joint 'k'"],
    ]
    with pytest.raises(UrdfError) as excinfo:
        read_text(mjcf('<body name="a" pos="0"/>\n<body name="b"><composite/></body>'))
    assert [line.split(": ")[1] for line in str(excinfo.value).splitlines()] == ["link 'a'", "link 'b' composite"]
