"""Reports: their data, verdicts and HTML.

charts    charts, cards and findings; series reduced for them
verdicts  bounds of a clean run, and verdicts on them
page      building blocks of a page: its frame, tables, charts and pictures
assets/   style and script of a page
"""
