#!/usr/bin/env python3
"""Plants defects in a copy of the pager, and counts in how many seeds the simulator finds each.

defects/NN-name.patch: the first line says what is wrong; each changed place asks planted(NN), so all
of them are in one copy, and a run chooses one: simulate_planted FIRST COUNT --defect NN.

  plant.py copy SOURCE TO         the folder pager/ with all defects, at TO/pager
  plant.py check SIMULATOR        each defect is found in at most so many seeds (a test)
  plant.py table SIMULATOR COUNT  the table of docs/experiments/simulator.md
"""
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

DEFECTS = pathlib.Path(__file__).parent / "defects"
MOST_SEEDS = 2000  # of `check`


def defects():
    """Number, description and text of each patch."""
    for path in sorted(DEFECTS.glob("*.patch")):
        text = path.read_text()
        yield int(path.name.split("-")[0]), text.splitlines()[0].rstrip("."), text


def hunks(text):
    """File, old and new lines of each hunk of a unified diff."""
    path, old, new = None, None, None
    for line in text.splitlines(keepends=True):
        if line.startswith("--- "):
            continue
        if line.startswith("+++ b/"):
            path = line[len("+++ b/") :].strip()
        elif line.startswith("@@"):
            if old is not None:
                yield path, "".join(old), "".join(new)
            old, new = [], []
        elif old is not None:
            if line[0] in " -":
                old.append(line[1:])
            if line[0] in " +":
                new.append(line[1:])
    yield path, "".join(old), "".join(new)


def plant(files, name, path, old, new):
    count = files[path].count(old)
    if count != 1:
        sys.exit(f"{name}: {path} has its lines {count} times: adapt the patch to the product's code")
    files[path] = files[path].replace(old, new)


def copy(source, to):
    source = pathlib.Path(source)
    files = {
        str(path.relative_to(source)): path.read_text()
        for path in sorted((source / "pager").rglob("*"))
        if path.suffix in (".h", ".cc")
    }
    for number, _, text in defects():
        for path, old, new in hunks(text):
            plant(files, f"defect {number}", path, old, new)
    for name, text in files.items():
        path = pathlib.Path(to) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:  # unchanged files are not compiled again
            path.write_text(text)


def run(simulator, number, count, *more):
    return subprocess.run(
        [simulator, "1", str(count), "--steps", "0", "--defect", str(number), *more],
        text=True,
        stdout=subprocess.PIPE,
        check=False,
    ).stdout


def first_failure(output):
    found = re.search(r"^seed (\d+) failed after \d+ steps: (.*)$", output, re.MULTILINE)
    return (int(found[1]), found[2]) if found else (None, "")


def check(simulator):
    wanted = [(number, title) for number, title, _ in defects()]
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda w: run(simulator, w[0], MOST_SEEDS), wanted))
    missed = 0
    for (number, title), output in zip(wanted, outputs):
        seed, message = first_failure(output)
        missed += seed is None
        print(f"{number:2} {title}: seed {seed}: {message}")
    if first_failure(run(simulator, 0, 100))[0] is not None:
        sys.exit("without a defect the copy fails too")
    if missed:
        sys.exit(f"{missed} planted defects were not found in {MOST_SEEDS} seeds")


def table(simulator, count):
    print(f"| defect | found in how many of {count} seeds | first seed | its message |")
    print("|---|---|---|---|")
    rows = [(number, title) for number, title, _ in defects()]
    with ThreadPoolExecutor(2) as pool:
        outputs = pool.map(lambda row: run(simulator, row[0], count, "--all"), rows)
        for (number, title), output in zip(rows, outputs):
            failed = re.search(r"seeds: (\d+) failed", output)[1]
            seed, message = first_failure(output)
            message = re.sub(r"^farpage: bug at \S*?(\w+\.\w+:\d+)", r"check at \1", message)
            print(f"| {number}. {title} | {failed} | {seed or '-'} | {message[:100]} |", flush=True)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"copy": copy, "check": check, "table": table}[command](*arguments)
