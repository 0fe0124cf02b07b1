#!/usr/bin/env python3
"""Each title of docs/design-notes.md that a code comment refers to exists, and no entry is long."""
import pathlib
import re
import sys

MAX_LINES = 15  # of an entry; measurements belong in docs/experiments/
COMMENT_BREAK = re.compile(r"\n\s*(?://|#|\*)\s*")
REFERENCE = re.compile(r'"([^"\n]{3,60})"\s+in\s+(?:docs/)?design-notes|design-notes(?:\.md)?,?\s+"([^"\n]{3,60})"')


def main(root):
    notes = (root / "docs/design-notes.md").read_text()
    titles = set(re.findall(r"^## (.*)$", notes, re.M))
    count, missing = 0, []
    for entry in re.split(r"^## ", notes, flags=re.M)[1:]:
        title, text = entry.split("\n", 1)
        lines = text.strip("\n").count("\n") + 1
        if lines > MAX_LINES:
            missing.append(f'docs/design-notes.md: "{title}" has {lines} lines, at most {MAX_LINES}')
    for folder in ("base", "bench", "cli", "coordinator", "image", "inject", "library", "node", "pager", "rdma", "share", "snapshot", "criu", "uffd",
                   "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                for match in REFERENCE.findall(COMMENT_BREAK.sub(" ", path.read_text())):
                    count += 1
                    title = match[0] or match[1]
                    if title not in titles:
                        missing.append(f'{path.relative_to(root)}: no title "{title}" in docs/design-notes.md')
    for line in missing:
        print(line, file=sys.stderr)
    print(f"{count} references, {len(titles)} titles, {len(missing)} errors")
    return 1 if missing or not count else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
