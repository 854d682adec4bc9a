"""references."""
