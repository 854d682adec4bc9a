"""A plant: a simulated or real robot behind its safety supervisor.

- `plant.py`: one drive cycle after the other: command, safety, robot, state; the interface of a driver
- `safety.py`: watchdog, limits and safe stops; set points of commanded positions and velocities, and their servos
- `simulated.py`: a simulated robot: engine, brakes, motors, sensors
"""
