#!/bin/bash
# The first thing to try: sort a file with most of sort's memory in another process, and compare.
# `./dev demo` builds what is needed and calls this.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
farpage=build/release/farpage
local_memory=32M
lines=300000

[ -x "$farpage" ] || { echo "demo: $PWD/$farpage is not built; ./dev demo builds it" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/farpage-demo-XXXXXX")
trap 'rm -rf "$work"' EXIT
export LC_ALL=C TMPDIR=$work FARPAGE_LOG_LEVEL=warning

row() { printf '  %-34s%14s\n' "$1" "$2"; }
# The same for both: a buffer for the whole file, so that sort keeps it in memory.
sort_it() { "$@" sort -S 400M "$work/input"; }
seconds() { printf '%d.%d s' $(($1 / 1000)) $(($1 % 1000 / 100)); }
now_ms() { date +%s%3N; }

cat <<TEXT
farpage demo: an unmodified program with most of its memory in another process.

A coordinator and a memory node start on this machine, and sort runs with at most $local_memory of
its memory here. Every other page is with the node, and comes back when sort touches it.

TEXT

python3 - "$work/input" "$lines" <<'MAKE'
import base64, random, sys
path, lines = sys.argv[1], int(sys.argv[2])
data = base64.b64encode(random.Random(1).randbytes(375 * lines))
with open(path, "wb") as out:
    for start in range(0, len(data), 500):
        out.write(data[start:start + 500] + b"\n")
MAKE
row "file to sort" "$(($(stat -c %s "$work/input") / 1000000)) MB"
row "local memory for sort" "$local_memory"

begin=$(now_ms)
expected=$(sort_it | sha256sum)
row "plain sort" "$(seconds $(($(now_ms) - begin)))"

begin=$(now_ms)
status=0
found=$(sort_it "$farpage" run --local "$local_memory" --stats-file "$work/stats.json" -- |
  sha256sum) || status=$?
if [ "$status" != 0 ]; then
  echo "demo: FAILED: farpage run ended with status $status" >&2
  exit 1
fi
row "sort in far memory" "$(seconds $(($(now_ms) - begin)))"

python3 - "$work/stats.json" <<'SHOW'
import json, sys
target = json.load(open(sys.argv[1]))["targets"][0]
latency = target["latency"]["remote_fault"]
evictions = target["evictions"]
def row(name, value):
    print(f"  {name:<34}{value:>14}")
row("remote faults", f"{target['faults']['remote']:,}")
row("evictions", f"{sum(evictions.values()) - evictions['cancelled']:,}")
row("remote fault, p50", f"{latency['p50_us']:.1f} us")
row("remote fault, p99", f"{latency['p99_us']:.1f} us")
if not target["faults"]["remote"] or not evictions["written"]:
    sys.exit("demo: FAILED: no page was evicted and fetched")
SHOW

echo
if [ "$expected" != "$found" ]; then
  echo "demo: FAILED: the output differs from that of the plain sort" >&2
  exit 1
fi
echo "output identical"
