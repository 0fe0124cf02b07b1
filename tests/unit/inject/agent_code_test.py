#!/usr/bin/env python3
"""The code of the injected agent runs at any address, alone: its section has no relocations, and its
object refers to no symbol but the section's ends."""
import re
import subprocess
import sys

SECTION = "farpage_agent"
ALLOWED = {"__start_" + SECTION, "__stop_" + SECTION}
MAX_BYTES = 2 * 4096


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(path):
    found = []
    sections = output("readelf", "-SW", path)
    size = re.search(rf"\s{SECTION}\s+PROGBITS\s+\w+\s+\w+\s+(\w+)\s+\w+\s+(\w+)", sections)
    if not size or size.group(2) != "AX":
        found.append(f"no executable section {SECTION}")
    elif not 0 < int(size.group(1), 16) <= MAX_BYTES:
        found.append(f"{int(size.group(1), 16)} bytes of code, at most {MAX_BYTES}")
    if re.search(rf"\.rela?{SECTION}\b", sections):
        found.append(f"{SECTION} has relocations:\n" + output("readelf", "-rW", path))
    for line in output("nm", "--undefined-only", path).splitlines():
        if line.split()[-1] not in ALLOWED:
            found.append(f"it refers to {line.split()[-1]}")
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
