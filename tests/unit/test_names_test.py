#!/usr/bin/env python3
"""test_names_test.py BUILD_DIR: the names of all tests are short words.

ctest aligns its lines to the longest name: one that is too long, or that has the bytes of a parameter
in it, makes all of them hard to read.
"""
import json
import re
import subprocess
import sys

MAX_NAME = 76  # a line of ctest has about 45 columns beside the name
NAME = re.compile(r"[\w./]+")


def printed_as_bytes(tests):
    """Parameters that the tests' messages show as "1-byte object <00>"."""
    binaries = {test["command"][0] for test in tests
                if any(word.startswith("--gtest_filter") for word in test.get("command", []))}
    for binary in sorted(binaries):
        lines = subprocess.run([binary, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
        yield from (f"{binary}: {line.strip()[:120]}" for line in lines.splitlines() if "-byte object" in line)


def main(build_dir):
    listing = subprocess.run(["ctest", "--test-dir", build_dir, "-C", "full", "--show-only=json-v1"],
                             check=True, capture_output=True, text=True).stdout
    tests = json.loads(listing)["tests"]
    names = [test["name"] for test in tests]
    found = [f"{name[:200]}: {len(name)} characters, at most {MAX_NAME}" for name in names if len(name) > MAX_NAME]
    found += [f"{name[:200]}: has more than letters, digits, _, . and /; give the parameter a name generator"
              for name in names if not NAME.fullmatch(name)]
    found += [f"{line}: give the parameter's type a PrintTo()" for line in printed_as_bytes(tests)]
    if not names:
        found.append(f"no tests in {build_dir}")
    for line in found:
        print(line, file=sys.stderr)
    print(f"{len(names)} names, {len(found)} errors")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
