#!/bin/bash
# In two lab VMs: coordinator and node in B, `farpage run -- sort` in A, over verbs and over tcp.
# two_machines.sh A|B FARPAGE
set -euo pipefail
farpage=$2
# shellcheck source=tests/lab/run/cluster.sh
. "$(dirname "$0")/cluster.sh"

if [ "$1" = B ]; then
  start_coordinator "$LAB_IP:7070" --insecure
  start_node node-b 256M verbs,tcp --listen-agent "$LAB_IP:0" --tcp-listen "$LAB_IP:0" --insecure
  lab signal cluster
  lab wait finished 240
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
lab signal finished
