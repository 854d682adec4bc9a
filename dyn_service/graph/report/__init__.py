"""Data of reports, without drawing.

- `charts.py`: charts, cards and findings; series reduced for them
- `verdicts.py`: bounds of a clean run, and verdicts on them
"""
