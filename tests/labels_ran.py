#!/usr/bin/env python3
"""labels_ran.py BUILD_DIR JUNIT_XML LABEL...: fails unless every label has a test that really ran.

A label that skipped everything it was meant to run has failed, whatever ctest's status says.
Silent when all is well, so that ctest's own summary stays the last thing on the screen.
"""
import collections
import json
import subprocess
import sys
import xml.etree.ElementTree


def labels_by_test(build_dir):
    listing = subprocess.run(
        ["ctest", "--test-dir", build_dir, "--show-only=json-v1"],
        check=True, capture_output=True, text=True).stdout
    labels = {}
    for test in json.loads(listing)["tests"]:
        for prop in test.get("properties", []):
            if prop["name"] == "LABELS":
                labels[test["name"]] = prop["value"]
    return labels


def main():
    build_dir, junit, *wanted = sys.argv[1:]
    try:
        cases = xml.etree.ElementTree.parse(junit).iter("testcase")
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"dev: ctest left no readable result: {error}", file=sys.stderr)
        return 1
    labels = labels_by_test(build_dir)
    ran, skipped = collections.Counter(), collections.Counter()
    for case in cases:
        counter = ran if case.get("status") in ("run", "fail") else skipped
        counter.update(labels.get(case.get("name"), []))
    status = 0
    for label in wanted:
        if ran[label] == 0:
            print(f"dev: label {label} ran no test ({skipped[label]} skipped): that is a failure",
                  file=sys.stderr)
            status = 1
    return status


sys.exit(main())
