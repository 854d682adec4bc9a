"""A robot as data: read, checked, and arranged parent-first."""
