"""Laws, reference motions and the simulated plant: no socket, no clock."""
