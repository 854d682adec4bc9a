"""MuJoCo's MJCF: https://mujoco.readthedocs.io/en/stable/XMLreference.html."""
