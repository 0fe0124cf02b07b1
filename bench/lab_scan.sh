#!/bin/bash
# A walk through another machine's memory against raw READs, in two lab VMs on one Ethernet, each
# with one emulated CPU: only the ratios are meaningful.
#
#   bench/lab_scan.sh [ROUNDS]   (3)      prints one line per walk, and the medians
#
# Needs build/release/farpage (./dev build) and the lab's packages (./dev setup lab).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
export farpage=build/release/farpage

if [ -z "${LAB_VM:-}" ]; then
  [ -x "$farpage" ] || { echo "lab_scan: $farpage is missing" >&2; exit 1; }
  rounds=${1:-3}
  tests/lab/vm.sh -t $((120 + rounds * 240)) --two "$PWD/bench/lab_scan.sh $rounds" "$PWD/bench/lab_scan.sh"
  exit
fi

# shellcheck source=tests/lab/run/cluster.sh
. tests/lab/run/cluster.sh
if [ "$LAB_VM" = B ]; then
  serve_until_finished 3600 256M verbs,tcp --slab 16M --tcp-listen "$LAB_IP:0"
  exit
fi

lab wait cluster
for ((round = 1; round <= $1; ++round)); do
  for transport in verbs tcp; do
    "$farpage" bench scan --coordinator "http://$LAB_PEER:7070" --size 64M --local 32M --slab 16M \
      --transport "$transport" --output json >"$work/$transport.$round.json"
  done
done
lab signal finished
python3 - "$work" <<'TABLE'
import glob, json, statistics, sys
for transport in "verbs", "tcp":
    runs = [json.load(open(path))["figures"] for path in sorted(glob.glob(f"{sys.argv[1]}/{transport}.*.json"))]
    for run in runs:
        print(f"{transport:<6} scan {run['scan_MB_per_s']:6.1f} MB/s, raw READ {run['raw_read_MB_per_s']:6.1f}, "
              f"{run['scan_to_raw_percent']:5.1f} %")
    print(f"{transport:<6} median {statistics.median(run['scan_to_raw_percent'] for run in runs):.1f} %")
TABLE
