"""A plant: a simulated or real robot behind its safety supervisor.

plant      one drive cycle after the other: command, safety, robot, state; the interface of a driver
safety     watchdog, limits and safe stops
drives     set points of commanded positions and velocities, and their servos
simulated  a simulated robot: engine, brakes, motors, gears, sensors
motors     limits of its motors' current and voltage, heat of their windings
gears      its elastic gears: rotors behind springs with play

"Stale" has three meanings: a command that answers a state too old is refused by `safety.py`; a cycle without a new
reading is counted by `plant.py`; a server's reply from before its restart is dropped by `service/client/connection.py`.
"""
