"""The plant node: a simulated or real robot that accepts commands and publishes its state.

- `node.py`: the node's declaration and start
- `factory.py`: its parameters, and the plant made from them: drives, driver, engine, motors, sensors, safety settings
- `loop.py`: its loop, paced or in lockstep; its topics: states, clock, commands and sensor readings
- `services.py`: set_state, reset, push, set_payload, step
- `srvs.py`: their requests and responses
- `report.py`: recordings and counters, and its part of the report, with charts and verdicts
"""
