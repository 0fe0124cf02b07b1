#!/usr/bin/env python3
"""The documents: each link leads somewhere, each test that they name exists, and each row of
docs/guarantees.md names a test."""
import pathlib
import re
import sys

FENCED = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
HEADING = re.compile(r"^#+\s+(.*)$", re.M)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
# `Suite.Name`, `Suite.*`, `Suite.Some*`, `Parameters/Suite.*`
TEST = re.compile(r"`(?:\w+/)?([A-Z]\w*)\.([\w*]+)`")
# A row of a table, except its heading and the line below that.
ROW = re.compile(r"^\|(?! *(?:-|guarantee \|))(.*)\|$", re.M)
DEFINED = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)")
# Several processes: EndToEndClass.name for each method test_name (tests/e2e/CMakeLists.txt).
CLASS_OR_METHOD = re.compile(r"^(?:class (\w+)\(|    def test_(\w+)\()", re.M)
# add_test(NAME Suite.Name ...), farpage_lab_test(NAME Suite.Name ...)
IN_CMAKE = re.compile(r"^\s*\w+_test\(NAME ([A-Z]\w*)\.(\w+)", re.M)


def slug(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading.strip().lower())).replace(" ", "-")


def anchors(path):
    return {slug(heading) for heading in HEADING.findall(FENCED.sub("", path.read_text()))}


def broken_links(root, path, text):
    for target in LINK.findall(text):
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        if not to.exists():
            yield f"{path.relative_to(root)}: nothing at {target}"
        elif anchor and to.suffix == ".md" and anchor not in anchors(to):
            yield f"{path.relative_to(root)}: no heading for {target}"


def unknown_tests(root, path, text, tests):
    for suite, name in TEST.findall(text):
        # Documents name tests of a program without the transport.
        wanted = re.compile(re.escape(name).replace(r"\*", r"\w*") + r"(_over_\w+)?")
        # `Type.member` has the same form.
        meant = suite in tests or not name[0].islower()
        if meant and not any(wanted.fullmatch(known) for known in tests.get(suite, ())):
            yield f"{path.relative_to(root)}: no test {suite}.{name}"


def rows_without_test(root, path, text):
    for row in ROW.findall(text):
        if not TEST.search(row):
            yield f"{path.relative_to(root)}: no test in the row '{row.strip()[:60]}'"


def main(root):
    root = root.resolve()
    tests = {}
    for path in (root / "tests").rglob("*.cc"):
        for suite, name in DEFINED.findall(path.read_text()):
            tests.setdefault(suite, set()).add(name)
    for path in (root / "tests/e2e").glob("*_test.py"):
        suite = ""
        for name, method in CLASS_OR_METHOD.findall(path.read_text()):
            if name:
                suite = "EndToEnd" + name
            else:
                tests.setdefault(suite, set()).add(method)
    for path in (root / "tests").rglob("CMakeLists.txt"):
        for suite, name in IN_CMAKE.findall(path.read_text()):
            tests.setdefault(suite, set()).add(name)
    documents = sorted([*root.glob("*.md"), *root.glob("*/*.md"), *root.glob("docs/*/*.md")])
    found = []
    for path in documents:
        text = path.read_text()
        found += broken_links(root, path, text)
        found += unknown_tests(root, path, text, tests)
        if path == root / "docs/guarantees.md":
            found += rows_without_test(root, path, text)
    if not (root / "docs/guarantees.md").exists():
        found.append("docs/guarantees.md is missing")
    if not documents or not tests:
        found.append(f"{len(documents)} documents and {len(tests)} test suites: is {root} the project?")
    for line in found:
        print(line, file=sys.stderr)
    print(f"{len(documents)} documents, {len(tests)} test suites, {len(found)} errors")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
