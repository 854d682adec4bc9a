"""Coverage-guided fuzzing of what reads strangers' bytes: `python -m qa.fuzz decoder --minutes 30`, or of others."""
