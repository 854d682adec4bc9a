"""Fails unless a launch report says: tracked to a milliradian, no request lost, every plot written."""

import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
report = json.loads(path.read_text())
rms, lost = report["tracking"]["rms_by_unit"]["rad"], report["requests"]["lost"]
missing = [n for n in ("tracking", "efforts", "loads", "round_trip") if not (path.parent / f"{n}.png").stat().st_size]
print(f"tracking error rms {rms:.2e} rad, {report['requests']['sent']} requests, {lost} lost")
if rms >= 1e-3 or lost or missing or not report["outcome"]["clean"]:
    sys.exit(f"the report is not good: outcome {report['outcome']}, missing plots {missing}")
