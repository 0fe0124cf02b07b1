#!/bin/bash
# In two lab VMs: coordinator and node in B, `farpage run -- sort` in A, over verbs and over tcp.
# two_machines.sh A|B FARPAGE [GUEST_MEMORY]
set -euo pipefail
farpage=$2
# shellcheck source=tests/lab/run/cluster.sh
. "$(dirname "$0")/cluster.sh"

if [ "$1" = B ]; then
  serve_until_finished 240 256M verbs,tcp --tcp-listen "$LAB_IP:0"
  exit
fi

make_lines 3 >"$work/input"
sort -S 30M "$work/input" >"$work/expected"
lab wait cluster
for transport in verbs tcp; do
  section "sort over $transport, memory in the other machine"
  timeout -s KILL 120 "$farpage" run --coordinator "http://$LAB_PEER:7070" --local 2M \
    --transport "$transport" --stats-file "$work/stats" -- \
    sort -S 30M "$work/input" >"$work/found"
  cmp "$work/expected" "$work/found"
  expect_paging "$work/stats" "$transport"
done

# A guest of QEMU in this one, which is emulated itself, does not boot within minutes: so what the
# guests of qemu_test.py do, as a process.
section "what a guest does with its memory, over verbs, memory in the other machine"
"$3" 24 >"$work/expected"
timeout -s KILL 120 "$farpage" run --coordinator "http://$LAB_PEER:7070" --local 8M --transport verbs \
  --stats-file "$work/stats" -- "$3" 24 >"$work/found"
cmp "$work/expected" "$work/found"
cat "$work/found"
expect_paging "$work/stats" verbs
lab signal finished
