#!/usr/bin/env python3
"""Runs some seeds twice, together and one by one: the traces must be the same, and differ from seed
to seed."""
import re
import subprocess
import sys

FIRST, COUNT = 20001, 30


def traces(first, count):
    output = subprocess.run(
        [sys.argv[1], str(first), str(count)], check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    return int(re.search(r"trace ([0-9a-f]+)", output).group(1), 16)


together = traces(FIRST, COUNT)
alone = [traces(seed, 1) for seed in range(FIRST, FIRST + COUNT)]
combined = 0
for trace in alone:
    combined ^= trace
if together != combined:
    sys.exit(f"seeds {FIRST} to {FIRST + COUNT - 1} took other steps when each ran alone")
if len(set(alone)) != COUNT:
    sys.exit("two seeds took the same steps")
print(f"{COUNT} seeds took the same steps twice")
