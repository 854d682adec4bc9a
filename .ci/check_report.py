"""Fails unless a launch report says: tracked to a milliradian, no request lost, no fault, every chart on the page.

Bounds on time are printed and not judged: the machine may be busy.
"""

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
outcome = report["outcome"]
print(outcome["verdict"], *(one["sentence"] for one in outcome["verdicts"] if one["passed"] is False), sep="; ")
in_time = {"safe stops", "time under command", "lateness", "time lost", "late answers"}
broken = [one["sentence"] for one in outcome["verdicts"] if one["passed"] is False and one["what"] not in in_time]
if rms >= 1e-3 or lost or missing or broken or outcome["exit_code"] or outcome["faults"]:
    sys.exit(f"the report is not good: {broken}, status {outcome['exit_code']}, {outcome['faults']}, missing {missing}")
