#!/bin/bash
# The remote fault against ib_read_lat, over SoftRoCE, in one boot of the lab: only the ratios are
# meaningful.
#
#   bench/lab_fault.sh [ROUNDS]         (5) one VM: the coordinator, the memory node, the pager and
#                                       perftest share two emulated CPUs
#   bench/lab_fault.sh --two [ROUNDS]   two VMs with one emulated CPU each: the coordinator and the
#                                       memory node, and perftest's server, are in the other one
#
# Prints one table; writes the JSON of each run below $LAB_BENCH_OUT.
# Needs build/release/farpage (./dev build) and the lab's packages (./dev setup lab).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
two=0
[ "${1:-}" != --two ] || { two=1; shift; }
rounds=${1:-5}
farpage=build/release/farpage

if [ -z "${LAB_VM:-}" ]; then
  [ -x "$farpage" ] || { echo "lab_fault: $farpage is missing" >&2; exit 1; }
  out=${LAB_BENCH_OUT:-$(mktemp -d)}
  if [ $two = 1 ]; then
    line="$PWD/bench/lab_fault.sh --two $rounds"
    tests/lab/vm.sh -i -m 2048 -t $((120 + rounds * 120)) -o "$out" --two "$line" "$line"
  else
    tests/lab/vm.sh -i -m 3072 -t 600 -o "$out" -- "$PWD/bench/lab_fault.sh $rounds"
  fi
  exit
fi

# Idle CPUs poll in this VM (-i), as on a machine configured for latency. ib_read_lat also polls.
where=()
bench() {
  FARPAGE_LOG_LEVEL=error "$farpage" bench "$@" --transport verbs --poll-mode busy --output json "${where[@]}"
}
read_lat() {
  ib_read_lat -d "$LAB_DEV" -x "$LAB_GID" -F -s 4096 -n 5000 "$@" 2>/dev/null
}
perftest() { # prints t_typical and 99 %
  local server='' to=$LAB_PEER line="" tries=0
  if [ $two = 0 ]; then
    read_lat >/dev/null &
    server=$! to=$LAB_IP
  fi
  while [ -z "$line" ]; do
    line=$(read_lat "$to" | awk '$1 == 4096 { print $5, $8 }') || true
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { echo "lab_fault: ib_read_lat does not work" >&2; exit 1; }
  done
  [ -z "$server" ] || wait "$server" || true
  echo "$line"
}

# The share of guest CPU time lost to the host in gaps above 1 ms, in percent.
disturbance() {
  python3 -c '
import time
start = last = time.monotonic_ns()
lost = 0
while last - start < 1_500_000_000:
    now = time.monotonic_ns()
    if now - last > 1_000_000: lost += now - last
    last = now
print(lost * 100 / (last - start))'
}

# The first touch of guest memory also faults on the host: take those faults before measuring.
touch_memory() { # MEGABYTES
  python3 -c 'import sys
b = bytearray(int(sys.argv[1]) << 20)
for i in range(0, len(b), 4096): b[i] = 1' "$1"
}

size=128M local=32M no_evict_size=256M no_evict_iterations=8000
if [ $two = 1 ]; then
  size=64M local=16M no_evict_size=128M no_evict_iterations=4000
  # shellcheck source=tests/lab/run/cluster.sh
  . tests/lab/run/cluster.sh
  touch_memory 800
  if [ "$LAB_VM" = B ]; then
    while true; do read_lat >/dev/null || sleep 0.1; done &
    pids+=($!)
    serve_until_finished 3600 512M verbs
    exit
  fi
  lab wait cluster 120
  where=(--coordinator "http://$LAB_PEER:7070")
else
  touch_memory 1200
fi

for round in $(seq "$rounds"); do
  disturbance >"$LAB_OUT/disturbance.$round"
  # Three runs: each process is in one of two states (50 and 80 us).
  perftest >"$LAB_OUT/perftest.$round"
  bench ladder --iterations 4000 >"$LAB_OUT/ladder.$round.json"
  perftest >>"$LAB_OUT/perftest.$round"
  bench fault --no-evict --size "$no_evict_size" --iterations "$no_evict_iterations" \
    >"$LAB_OUT/no_evict.$round.json"
  bench fault --size "$size" --local "$local" --iterations 10000 >"$LAB_OUT/steady.$round.json"
  bench fault --size "$size" --local "$local" --iterations 10000 --access mixed \
    >"$LAB_OUT/steady_mixed.$round.json"
  perftest >>"$LAB_OUT/perftest.$round"
done
[ $two = 0 ] || lab signal finished
python3 bench/lab_fault_table.py "$LAB_OUT" "$rounds"
