"""docs/compatibility.md claims exactly what tests prove."""
import glob
import json
import os
import re
import subprocess
from unittest import TestCase, main

from cluster import BUILD

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "../../docs/compatibility.md")


def verifiers():
    """The test classes in which foreign programs run."""
    names = []
    for file in glob.glob(os.path.join(HERE, "*_test.py")):
        with open(file, encoding="utf-8") as source:
            names += re.findall(r"^class (\w+)\(Verifier\)", source.read(), re.MULTILINE)
    return names


def registered():
    """Names and labels of all tests, as ctest knows them."""
    listing = subprocess.run(["ctest", "--test-dir", BUILD, "-C", "full", "--show-only=json-v1"],
                             check=True, capture_output=True, text=True).stdout
    return {test["name"]: [label for prop in test["properties"] if prop["name"] == "LABELS"
                           for label in prop["value"]] for test in json.loads(listing)["tests"]}


def rows():
    """The table of programs: a dictionary for each row, by the heads of the columns."""
    with open(PAGE, encoding="utf-8") as file:
        lines = [line.strip().strip("|") for line in file if line.startswith("|")]
    table = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    begin = next(i for i, cells in enumerate(table) if cells[0] == "program")
    result = []
    for cells in table[begin + 2:]:
        if len(cells) != len(table[begin]):
            break
        result.append(dict(zip(table[begin], cells)))
    return result


def claimed():
    """Names of the tests that the table mentions."""
    names = []
    for row in rows():
        test = row["test"].strip("`")
        for transport in row["transports"].split(", "):
            names.append(f"{test}_over_{transport}" if transport != "verbs" else "Run.EachProgramOverVerbs")
    return names


class Compatibility(TestCase):
    def test_every_row_is_a_test(self):
        tests = registered()
        self.assertGreater(len(claimed()), 20)
        for name in claimed():
            self.assertIn(name, tests)
            self.assertEqual(tests[name], ["rdma" if name.startswith("Run.") else "e2e"], name)

    def test_every_test_of_a_program_has_its_row(self):
        names = [name for name in registered()
                 if re.match(rf"EndToEnd({'|'.join(verifiers())})\.\w+_over_\w+$", name)]
        self.assertGreater(len(names), 20)
        for name in names:
            self.assertIn(name, claimed())

    def test_numbers_are_those_of_real_paging(self):
        for row in rows():
            for column in ("remote faults", "evictions"):
                self.assertGreater(int(row[column].replace(",", "")), 1000, row)


if __name__ == "__main__":
    main()
