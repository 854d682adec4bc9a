"""Integration steps.

implicit_midpoint  the symplectic midpoint step
adaptive           extrapolation with step size control
stick_slip         exact Coulomb friction of joints
"""
