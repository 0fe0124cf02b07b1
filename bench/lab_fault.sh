#!/bin/bash
# The remote fault against ib_read_lat, over SoftRoCE, in one boot of the lab VM: the coordinator,
# the memory node, the pager and perftest share two emulated CPUs, so only the ratios mean anything.
#
#   bench/lab_fault.sh [ROUNDS]   (5)      prints one table; JSON of each run below $LAB_BENCH_OUT
#
# Needs build/release/farpage (./dev build) and the lab's packages (./dev setup lab).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
rounds=${1:-5}

if [ -z "${LAB_VM:-}" ]; then
  [ -x build/release/farpage ] || { echo "lab_fault: build/release/farpage is missing" >&2; exit 1; }
  out=${LAB_BENCH_OUT:-$(mktemp -d)}
  tests/lab/vm.sh -i -m 3072 -t 600 -o "$out" -- "$PWD/bench/lab_fault.sh $rounds"
  exit
fi

# Idle CPUs poll in this VM (-i), as on a machine that is set up for latency, and ib_read_lat polls, too.
farpage() {
  FARPAGE_LOG_LEVEL=error build/release/farpage bench "$@" --transport verbs --poll-mode busy --output json
}
perftest() { # prints t_typical and 99 %
  ib_read_lat -d "$LAB_DEV" -x "$LAB_GID" -F -s 4096 -n 5000 >/dev/null 2>&1 &
  local server=$! line="" tries=0
  while [ -z "$line" ]; do
    line=$(ib_read_lat -d "$LAB_DEV" -x "$LAB_GID" -F -s 4096 -n 5000 "$LAB_IP" 2>/dev/null |
      awk '$1 == 4096 { print $5, $8 }') || true
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { echo "lab_fault: ib_read_lat does not work" >&2; exit 1; }
  done
  wait "$server" || true
  echo "$line"
}

# How much of a guest CPU the host takes away for more than a millisecond at a time, in percent.
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

# The first touch of guest memory is a fault on the host as well: have it done before.
python3 -c 'b = bytearray(1200 << 20)
for i in range(0, len(b), 4096): b[i] = 1'

for round in $(seq "$rounds"); do
  disturbance >"$LAB_OUT/disturbance.$round"
  # Three times: it runs in one of two states, from process to process (50 and 80 us).
  perftest >"$LAB_OUT/perftest.$round"
  farpage ladder --iterations 4000 >"$LAB_OUT/ladder.$round.json"
  perftest >>"$LAB_OUT/perftest.$round"
  farpage fault --no-evict --iterations 8000 >"$LAB_OUT/no_evict.$round.json"
  farpage fault --size 128M --local 32M --iterations 10000 >"$LAB_OUT/steady.$round.json"
  farpage fault --size 128M --local 32M --iterations 10000 --access mixed \
    >"$LAB_OUT/steady_mixed.$round.json"
  perftest >>"$LAB_OUT/perftest.$round"
done
exec python3 bench/lab_fault_table.py "$LAB_OUT" "$rounds"
