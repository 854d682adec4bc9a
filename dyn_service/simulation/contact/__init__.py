"""Joint limits and contacts in simulation.

supports          joint stops, velocity limits, contacts: their forces, and accelerations while points are held
steps             simulation steps with them, with the energy balance
ground_reactions  joint efforts and contact forces of a given motion
"""
