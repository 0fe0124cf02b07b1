#!/bin/bash
# In two lab VMs: coordinator and node in B, `farpage run -- sort` in A, over verbs and over tcp.
# two_machines.sh A|B FARPAGE
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
lab signal finished
