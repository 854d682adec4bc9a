"""A plant: a simulated or real robot behind its safety supervisor.

- `plant.py`: one drive cycle after the other: command, safety, robot, state
- `safety.py`: watchdog, limits and safe stops
- `safety.py`: set points of commanded positions and velocities; servos that track them
- `plant.py`: the interface of a driver, and the checks of what it returns
- `simulated.py`: a simulated robot: engine, brakes, motors, sensors
"""
