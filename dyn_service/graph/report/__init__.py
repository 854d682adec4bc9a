"""Reports: their data, verdicts and HTML.

charts          charts, cards and findings; series reduced for them
verdicts        bounds of a clean run, and verdicts on them
page            pages as data, and their renderer: tables, charts and pictures
identification  the page of an identification
assets/         style and script of a page
"""
