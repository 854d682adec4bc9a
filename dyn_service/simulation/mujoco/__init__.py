"""MuJoCo as the engine of a simulated plant (extra `mujoco`).

engine    states and steps
"""
