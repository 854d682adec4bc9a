"""Fails unless a launch report says: tracked to a milliradian, no request lost, every chart on the page."""

import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
report = json.loads(path.read_text())
rms, lost = report["tracking"]["rms_by_unit"]["rad"], report["requests"]["lost"]
page = (path.parent / "index.html").read_text("utf-8")
headings = ("Tracking", "Efforts that acted", "Load that each joint carries", "Round trips")
missing = [heading for heading in headings if f"<h3>{heading}</h3>" not in page]
print(f"tracking error rms {rms:.2e} rad, {report['requests']['sent']} requests, {lost} lost")
if rms >= 1e-3 or lost or missing or not report["outcome"]["clean"]:
    sys.exit(f"the report is not good: outcome {report['outcome']}, missing charts {missing}")
