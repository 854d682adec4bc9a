"""A third of the random trees against MuJoCo, which shares no code or convention with Pinocchio or with us."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from tests.comparing import assert_close
from tests.oracle.test_pinocchio import STATES, TOLERANCE, TREES
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreting
from tests.wide import one_in, wide


def mujoco_model(xml: str) -> mujoco.MjModel:
    """The robot in MuJoCo, with everything off that URDF does not describe: contacts, limits, inertia balancing."""
    extension = (
        '<mujoco><compiler fusestatic="false" balanceinertia="false" discardvisual="true" strippath="true"/>'
        '<option gravity="0 0 -9.81"><flag contact="disable" limit="disable"/></option></mujoco>'
    )
    return mujoco.MjModel.from_xml_string(xml.replace("</robot>", extension + "</robot>"))


@pytest.mark.parametrize("seed", wide(range(0, TREES, 3), one_in(4)))
def test_random_tree(seed: int) -> None:
    xml = random_urdf(seed)
    robot, model = interpreting(xml), mujoco_model(xml)
    data = mujoco.MjData(model)
    place = [model.joint(name).dofadr[0] for name in robot.joint_names]
    rng = np.random.default_rng(seed)
    q = rng.uniform(-3.0, 3.0, (STATES, robot.nq))
    v, a = rng.uniform(-2.0, 2.0, (2, STATES, robot.nv))
    tau, accelerations, matrices, biases = (np.empty((STATES, robot.nv)) for _ in range(4))
    matrices = np.empty((STATES, robot.nv, robot.nv))
    full = np.zeros((model.nv, model.nv))
    for k in range(STATES):
        data.qpos[place], data.qvel[place], data.qacc[place] = q[k], v[k], a[k]
        mujoco.mj_inverse(model, data)
        tau[k] = data.qfrc_inverse[place]
        biases[k] = data.qfrc_bias[place]
        mujoco.mj_fullM(model, data, full)
        matrices[k] = full[np.ix_(place, place)]
        data.qfrc_applied[place] = tau[k]
        mujoco.mj_forward(model, data)
        accelerations[k] = data.qacc[place]
    for term, ours, reference in (
        ("inverse_dynamics", robot.inverse_dynamics(q, v, a), tau),
        ("forward_dynamics", robot.forward_dynamics(q, v, tau), accelerations),
        ("mass_matrix", robot.mass_matrix(q), matrices),
        ("bias_forces", robot.bias_forces(q, v), biases),
    ):
        assert_close(term, ours, reference, TOLERANCE, robot, q, v, a)
