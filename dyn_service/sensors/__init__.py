"""Models of real sensors: bias, noise, filters, saturation, steps, tare, rate and latency.

The ideal quantities are rows of the table, `force_torque` and `imu`, and the joints' positions. Plain NumPy: it goes
with a robot in this process and with a remote one alike.

    sensors = Sensors.from_file(robot, "config/ur5e_sensors.yaml")
    readings = sensors.read(t, q, v, a)          # {"wrist": Reading(..), ..}: what their drivers would report at t

devices   `Sensors`: they take true values at any time and produce readings at their own rate
settings  settings of sensors, one struct per kind, and the reader of sensor files
"""

from __future__ import annotations

from dyn_service.sensors.devices import Device, Reading, Record, Sensors

__all__ = ["Device", "Reading", "Record", "Sensors"]
