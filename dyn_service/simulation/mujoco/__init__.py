"""mujoco."""
