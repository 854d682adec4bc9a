"""Robots whose links form closed loops, answered from the kernels of their tree.

mechanism     the loop joints at states: gaps, velocities that open loops
closed_loops  what loops leave free, and the motions that keep them closed
call          one call of a query: solutions of the equations at its state
queries       the steps of a call; the kernels that it needs
answers       the table of queries, with their answers from the kernels of the tree
computations  long computations about loops
joints        gap, velocity rows and acceleration bias of the joints that close loops
paths         joints between the links of a loop joint
freedom       what loops leave free, at random closed positions
kernels       compiled dynamics at regular states
derivatives   derivatives, regressor and operational-space inertia
assembly      positions that close loops
simulation    motions for simulations and `step`
tree_evaluator  what these modules need of the evaluator of the tree
"""
