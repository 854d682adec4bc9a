"""Robots whose links form closed loops, answered from the kernels of their tree.

closed_loops  states, calls, freedom, computations
answers       the queries, from the kernels of the tree
joints        gap, velocity rows and acceleration bias of the joints that close loops
paths         joints between the links of a loop joint
freedom       what loops leave free, at random closed positions
kernels       compiled dynamics at regular states
derivatives   derivatives, regressor and operational-space inertia
assembly      positions that close loops
simulation    motions for simulations and `step`
export        exported functions
"""
