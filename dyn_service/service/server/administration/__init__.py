"""administration."""
