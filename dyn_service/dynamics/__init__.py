"""The equations, one module per formulation, written once."""
