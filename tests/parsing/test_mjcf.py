"""Models of MJCF, a feature each, against MuJoCo's own compiler and dynamics; `python -m tests.oracle.mjcf FILE ..`
for others.
"""

from __future__ import annotations

import mujoco
import pytest

from tests.oracle.mujoco_models import errors
from tests.oracle.test_pinocchio import TOLERANCE

ARM = """
<body name="upper" pos="0.1 0.2 0.3" {turn}>
  <joint name="shoulder" axis="0 1 0.2" {joint}/>
  <inertial pos="0.1 0.02 -0.1" mass="2" {moments}/>
  <body name="lower" pos="0 0.1 0.4" {turn}>
    <joint name="elbow" axis="1 0 0.1" type="{kind}" {joint}/>
    <inertial pos="0.1 0 0.2" mass="1.5" {moments}/>
  </body>
</body>"""


def arm(
    compiler: str = "",
    turn: str = "",
    joint: str = "",
    moments: str = 'diaginertia="0.02 0.03 0.04"',
    kind: str = "hinge",
    head: str = "",
    tail: str = "",
) -> str:
    body = ARM.format(turn=turn, joint=joint, moments=moments, kind=kind)
    return f'<mujoco model="arm"><compiler {compiler}/>{head}<worldbody>{body}</worldbody>{tail}</mujoco>'


def world(bodies: str, head: str = "") -> str:
    return f'<mujoco model="made">{head}<worldbody>{bodies}</worldbody></mujoco>'


def shapes(*geoms: str, compiler: str = "") -> str:
    elements = "".join(f"<geom {geom}/>" for geom in geoms)
    return world(f'<body><joint axis="1 -2 3"/>{elements}</body>', f"<compiler {compiler}/>")


TIP = '<geom size="0.02" pos="0.02 0 0"/>'

DEFAULTS = {"motor": 'gear="3" armature="0.01"', "general": 'gear="2"', "position": 'armature="0.02" gear="5"'}

MODELS = {
    "diaginertia": arm(),
    "quat": arm(turn='quat="0.5 0.1 0.7 -0.2"'),
    "quat far from unit": arm(turn='quat="5 1 7 -2"'),
    "euler, degrees": arm(turn='euler="10 20 -130"'),
    "euler, radians": arm('angle="radian"', turn='euler="0.1 2 -1.3"'),
    "euler XYZ": arm('eulerseq="XYZ"', turn='euler="10 20 -130"'),
    "euler zYx": arm('eulerseq="zYx"', turn='euler="10 20 -130"'),
    "euler xyx": arm('eulerseq="xyx"', turn='euler="10 20 -130"'),
    "axisangle": arm(turn='axisangle="1 2 -3 75"'),
    "axisangle, radians": arm('angle="radian"', turn='axisangle="1 2 -3 0.75"'),
    "xyaxes": arm(turn='xyaxes="1 2 3 -2 1 1"'),
    "zaxis": arm(turn='zaxis="1 -2 0.4"'),
    "zaxis down": arm(turn='zaxis="0 0 -3"'),
    "inertial turned": arm(moments='quat="1 2 3 4" diaginertia="0.02 0.03 0.04"'),
    "fullinertia": arm(moments='fullinertia="0.02 0.03 0.04 0.001 -0.002 0.003"'),
    "a point mass without a joint": world(
        f'<body><joint axis="1 -2 3"/>{TIP}<body pos="0 0.1 0.2"><inertial pos="0.1 0 0.2" mass="0.3"/></body></body>'
    ),
    "slide": arm(kind="slide"),
    "joint pos": arm(joint='pos="0.1 -0.2 0.3"'),
    "slide with pos": arm(joint='pos="0.1 -0.2 0.3"', kind="slide"),
    "ref": arm(joint='ref="30"'),
    "ref of a slide": arm('angle="radian"', joint='ref="0.3"', kind="slide"),
    "ref and pos": arm(joint='ref="-40" pos="0.1 0.2 -0.1"'),
    "armature, damping": arm(joint='armature="0.3" damping="2.5"'),
    "springs": arm(joint='stiffness="7" springref="25" ref="10" damping="0.1"'),
    "springs, radians": arm('angle="radian"', joint='stiffness="7" springref="0.25"', kind="slide"),
    "range": arm(joint='range="-30 45" actuatorfrcrange="-3 3"'),
    "autolimits off": arm('autolimits="false"', joint='range="-30 45" limited="true"'),
    "ball": arm(kind="ball", joint='damping="0.4" armature="0.02"'),
    "ball with pos": world(
        '<body name="b" pos="1 0 0" euler="10 20 30"><joint type="ball" pos="0.1 0.2 0.3"/><geom size="0.1 0.2 0.3" '
        'type="box" pos="0.2 0 0"/></body>'
    ),
    "springs of a ball": world('<body><joint type="ball" stiffness="3"/><geom size="0.1" pos="0.1 0 0"/></body>'),
    "polynomial springs and damping": arm(joint='stiffness="3 1 2" damping="2 0.1"'),
    "numbers over numbers": arm(
        joint='damping="5"', head='<default><joint damping="1 0.2" stiffness="3"/><default class="x"/></default>'
    ),
    "free": world(
        '<body name="base" pos="0 0 1" euler="0 0 30"><freejoint name="root"/><geom type="box" size="0.3 0.2 0.1"/>'
        '<body name="leg" pos="0.2 0 0"><joint name="hip" axis="0 1 0"/><geom type="capsule" size="0.05" '
        'fromto="0 0 0 0.1 0 -0.4"/></body></body>'
    ),
    "free by type, damped": world(
        '<body pos="0 0 1"><joint type="free" damping="2" armature="0.1" pos="1 2 3"/><inertial pos="0.1 0 0" mass="2" '
        'fullinertia="0.02 0.03 0.04 0.001 -0.002 0.003"/></body>'
    ),
    "several joints": world(
        '<body name="trunk" pos="0 0 1" euler="5 6 7"><joint name="x" type="slide" axis="1 0 0"/>'
        '<joint name="z" type="slide" axis="0 0 1" damping="3"/><joint name="pitch" axis="0 1 0" pos="0 0 0.3" '
        'ref="20"/>'
        '<geom type="capsule" size="0.1 0.3"/><body pos="0 0 -0.5"><joint name="c" axis="0 1 0"/>'
        '<joint name="b" axis="1 0 0" pos="0 0 0.1"/><joint name="a" axis="0 0 1" pos="0.1 0 0.1"/>'
        '<geom type="capsule" size="0.05" fromto="0 0 0 0 0 -0.4"/></body></body>'
    ),
    "slides and a ball": world(
        '<body euler="0 40 0"><joint type="slide" axis="1 0 1"/><joint type="ball" pos="0 0 0.2"/>'
        '<joint type="slide" axis="0 1 0"/><geom type="box" size="0.1 0.2 0.3" pos="0 0 -0.4"/></body>'
    ),
    "trees, static bodies": world(
        '<geom type="plane" size="1 1 1"/><body name="table"><geom type="box" size="1 1 0.1"/></body>'
        '<body name="one" pos="1 0 0"><joint axis="1 0 0"/><geom size="0.1" pos="0 0.1 0"/><body name="tip" '
        'pos="0 0.2 0" '
        'euler="0 90 0"><geom type="box" size="0.1 0.2 0.3"/></body></body><body name="two" pos="-1 0 0">'
        '<body pos="0 0 1"><joint axis="0 1 0"/><geom size="0.2" pos="0.3 0 0"/></body></body>'
    ),
    "mocap": world(
        '<body name="hand" mocap="true"><geom size="0.1"/></body><body pos="0 0 1"><joint/><geom size="0.1 0.2 '
        '0.3" type="box" '
        'pos="1 0 0"/></body>'
    ),
    "sphere": shapes('size="0.1" pos="0.1 0 0"'),
    "box": shapes('type="box" size="0.1 0.2 0.3" pos="0.1 0.2 0.3" euler="10 20 30"'),
    "capsule": shapes('type="capsule" size="0.1 0.3" pos="0.1 0.2 0.3" euler="10 20 30"'),
    "cylinder": shapes('type="cylinder" size="0.1 0.3" pos="0.1 0.2 0.3" euler="10 20 30"'),
    "ellipsoid": shapes('type="ellipsoid" size="0.1 0.2 0.3" pos="0.1 0.2 0.3" euler="10 20 30"'),
    "fromto": shapes(
        *(f'type="{kind}" size="0.05" fromto="0.1 0.2 0.3 -0.2 0.1 0.5"' for kind in ("capsule", "cylinder")),
        *(f'type="{kind}" size="0.05" fromto="0.1 0.2 0.3 -0.2 0.1 0.5"' for kind in ("box", "ellipsoid")),
    ),
    "mass and density": shapes(
        'size="0.1" mass="3" pos="0.3 0 0"', 'type="box" size="0.1 0.1 0.2" density="400"', 'size="9" mass="0"'
    ),
    "groups": shapes('size="0.1"', 'size="0.2" group="4" pos="1 0 0"', compiler='inertiagrouprange="0 3"'),
    "shells": shapes(
        'size="0.1" shellinertia="true" pos="0.3 0 0"',
        'type="box" size="0.1 0.15 0.2" density="40" shellinertia="true"',
        'type="cylinder" size="0.1 0.15" mass="2" shellinertia="true" pos="0 0.1 0"',
        'type="capsule" size="0.1 0.15" mass="2" shellinertia="true" pos="0 0.1 0"',
    ),
    "shapes and an inertial": world(
        '<body><joint/><inertial pos="0.1 0 0" mass="1" diaginertia="1 1 1"/><geom size="0.2"/></body>'
    ),
    "inertiafromgeom": world(
        '<body><joint/><inertial pos="0.1 0 0" mass="1" diaginertia="1 1 1"/><geom size="0.2" pos="1 0 0"/></body>',
        '<compiler inertiafromgeom="true"/>',
    ),
    "inertiafromgeom, of no shape that counts": world(
        '<body><joint/><inertial pos="0.1 0 0" mass="1" diaginertia="1 1 1"/><geom size="0.2" group="4"/>'
        '<geom size="0.2" mass="0"/></body>',
        '<compiler inertiafromgeom="true" inertiagrouprange="0 3"/>',
    ),
    "an inertial in frames": world(
        '<body><joint axis="1 2 3"/><frame pos="1 0 0" euler="10 20 30"><frame pos="0 2 0" euler="40 0 0"><inertial '
        'pos="0.1 0.2 0.3" mass="1" fullinertia="2 2.1 2.2 0.1 -0.2 0.3"/></frame></frame><body><joint/><frame '
        'euler="30 0 0"><inertial pos="0.1 0.2 0.3" mass="1" diaginertia="1 1.2 1.1" euler="5 6 7"/></frame></body>'
        "</body>"
    ),
    "a ball that is limited and has no range": world(
        '<body><joint name="b" type="ball" limited="true"/><geom size="0.2" pos="1 0 0"/></body>'
    ),
    "boundmass": arm('boundmass="5" boundinertia="0.03"'),
    "boundmass of a body without any": """<mujoco><compiler boundmass="0.5" boundinertia="0.03"/><worldbody>
        <frame pos="0 0 5"><body name="a" pos="1 2 3" quat="1 1 0 0"><joint/>
        <body name="b" pos="0 0 1"><joint axis="1 0 0"/>
        <geom size="0.1"/></body></body></frame></worldbody></mujoco>""",
    "balanceinertia": arm('balanceinertia="true"', moments='diaginertia="0.01 0.02 0.09"'),
    "balanceinertia of a possible body": arm('balanceinertia="true"', moments='diaginertia="0.04 0.06 0.09"'),
    "settotalmass": arm('settotalmass="17"'),
    "defaults": world(
        '<body name="a" childclass="soft"><joint name="j"/><geom/><body name="b" pos="0 0 1"><joint name="k" '
        'class="stiff"/>'
        '<geom class="main" size="0.2"/><body name="c" pos="0 1 0" childclass="stiff"><joint name="l" '
        'damping="0.5"/><geom/>'
        "</body></body></body>",
        '<default><joint axis="1 0 0" damping="1"/><geom type="box" size="0.1 0.2 0.3" pos="0.1 0 0"/><default '
        'class="soft">'
        '<joint stiffness="3" armature="0.2"/><geom density="500"/><default class="stiff"><joint axis="0 1 1" '
        'stiffness="30"/><geom euler="10 20 30"/></default></default></default>',
    ),
    "a class that is turned": world(
        '<body><joint/><geom class="t" quat="1 0 0 1"/><geom class="u" euler="0 50 0" pos="1 0 0"/></body>',
        '<default><geom type="box" size="0.1 0.2 0.3"/><default class="t"><geom euler="10 20 30"/></default>'
        '<default class="u"><geom axisangle="1 0 0 70"/></default></default>',
    ),
    "a class in a class": world(
        '<body><joint/><geom class="u" pos="0 0.2 0"/><geom class="v" pos="1 0 0"/></body>',
        '<default><geom type="box" size="0.1 0.2 0.3" zaxis="1 2 3"/><default class="u"><geom euler="10 20 30" '
        'size="0.4"/><default class="v"><geom size="0.5 0.6"/></default></default></default>',
    ),
    "frames": world(
        '<frame pos="1 0 0" euler="10 20 30"><body name="a" pos="0 0 1" euler="0 0 50"><frame pos="0 0.1 0" '
        'euler="0 70 0">'
        '<joint axis="1 0 0" pos="0.1 0 0"/><geom type="box" size="0.1 0.2 0.3" pos="0 0 0.3"/><frame euler="30 0 0">'
        '<joint axis="0 1 0"/><body name="deep" pos="0.1 0 0"><joint axis="0 0 1"/><geom size="0.1" pos="0.2 0 '
        '0"/></body>'
        '</frame><joint axis="0 0 1" type="slide"/></frame><joint axis="0 1 1"/></body></frame>'
    ),
    "classes of frames": world(
        '<frame childclass="c"><body name="a"><joint axis="0 1 0"/><geom pos="0.2 0 0"/><frame childclass="d"><body>'
        "<joint/><geom pos='0.3 0 0'/></body></frame></body></frame>",
        '<default><geom size="0.1"/><default class="c"><joint damping="3"/></default><default class="d"><joint '
        'armature="1" axis="1 0 0"/></default></default>',
    ),
    "actuators with rotors": arm(
        joint='damping="0.3" armature="0.05"',
        tail='<actuator><motor joint="elbow" gear="7" armature="0.002"/><general joint="elbow" damping="0.1" gear="3"/>'
        '<motor name="m" joint="shoulder" gear="2"/></actuator>'
    ),
    **{
        f"defaults of kinds of actuators, {', '.join(kinds)}": arm(
            head=f"<default>{' '.join(f'<{kind} {DEFAULTS[kind]}/>' for kind in kinds)}</default>",
            tail='<actuator><motor joint="elbow"/><position joint="shoulder" kp="1"/></actuator>',
        )
        for kinds in (("motor", "general"), ("general", "motor"), ("position",))
    },
    "gravity switched off by the first of two options": arm(
        head='<option><flag gravity="disable"/></option><option><flag contact="disable"/></option>',
    ),
    "what stands beside": arm(
        head='<option gravity="0 0 -1.6" wind="1 0 0" density="1.2" timestep="0.01"><flag gravity="disable"/></option>'
        '<size memory="1M"/><visual/><asset><texture name="t" type="2d" builtin="flat" width="8" height="8"/></asset>',
        tail='<tendon><fixed name="t" stiffness="10" damping="1"><joint joint="elbow" coef="2"/></fixed></tendon>'
        '<equality><joint joint1="elbow" joint2="shoulder" polycoef="0.1 2 0 0 0"/><connect body1="lower" '
        'body2="upper" '
        'anchor="0 0 0"/></equality><sensor><jointpos joint="elbow"/></sensor><contact><exclude body1="upper" '
        'body2="lower"/></contact><keyframe><key qpos="0 0"/></keyframe>',
    ),
    "replicas": world(
        '<replicate count="11" offset="0.1 0 0.05" euler="10 0 30" sep="-" childclass="c"><body name="b" pos="1 0 0">'
        '<joint name="j" axis="0 1 0"/><geom size="0.1"/><replicate count="2" offset="0 0 0.2"><body name="c">'
        '<joint name="k"/><geom size="0.05" pos="0.1 0 0"/></body></replicate></body></replicate><replicate count="10" '
        'euler="0 10 0"><body pos="0 0 1"><joint axis="1 0 0"/><geom size="0.1" pos="0 0.1 0"/></body>'
        '<geom size="0.2"/></replicate>',
        '<compiler eulerseq="zyx"/><default><default class="c"><joint damping="2"/></default></default>',
    ).replace(
        "</mujoco>", '<actuator><motor name="m" joint="j" gear="2" armature="0.1"/></actuator><equality>'
        '<joint joint1="k" joint2="j"/></equality></mujoco>'
    ),
    "ranges without an end": world(
        '<body><joint axis="0 1 0" range="-inf inf"/><geom size="0.1" pos="0.2 0 0"/><body><joint type="slide" '
        'range="-1 Infinity" actuatorfrcrange="-inf inf"/><geom size="0.1"/></body></body>'
    ),
    "gravity": arm(head='<option gravity="0.5 0 -1.6"/><option timestep="0.01"/>'),
    "gravcomp": world('<body gravcomp="0.5"><joint axis="1 0 0"/><geom size="0.1" pos="0 0.2 0"/></body>'),
    "a long chain": world(
        "".join(f'<body pos="0.05 0 0"><joint axis="{k % 2} 1 0"/>{TIP}' for k in range(12)) + "</body>" * 12
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_feature(name: str) -> None:
    worst = errors(MODELS[name], mujoco.MjModel.from_xml_string(MODELS[name]))
    assert max(worst.values()) <= TOLERANCE, worst
