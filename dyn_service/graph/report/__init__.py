"""Reports: their data, verdicts and HTML.

- `charts.py`: charts, cards and findings; series reduced for them
- `verdicts.py`: bounds of a clean run, and verdicts on them
- `page.py`: building blocks of a page: its frame, tables, charts and pictures
"""
