"""Long runs, each by one command; what they hold is in docs/reliability.md."""
