#!/bin/bash
# In a lab VM: `farpage run` over verbs on one machine, with separate processes for coordinator and
# node. one_machine.sh FARPAGE RANDOM_ACCESS RESTORED_GUEST
set -euo pipefail
farpage=$1 random_access=$2 restored_guest=$3
# shellcheck source=tests/lab/run/cluster.sh
. "$(dirname "$0")/cluster.sh"

start_coordinator 127.0.0.1:7070
start_node node-1 256M verbs
run=("$farpage" run --coordinator http://127.0.0.1:7070 --transport verbs)

section "sort over verbs"
make_lines 6 >"$work/input"
sort -S 40M "$work/input" >"$work/expected"
timeout -s KILL 120 "${run[@]}" --local 4M --stats-file "$work/stats" -- \
  sort -S 40M "$work/input" >"$work/found"
cmp "$work/expected" "$work/found"
expect_paging "$work/stats" verbs

section "benchmarks over verbs: each checks the bytes that it reads"
for benchmark in "read --iterations 50" "connect --iterations 5" "register --iterations 5" \
  "fault --size 16M --local 4M --iterations 200"; do
  # shellcheck disable=SC2086
  timeout -s KILL 60 "$farpage" bench $benchmark --coordinator http://127.0.0.1:7070 \
    --transport verbs >"$work/found" 2>"$work/log" || fail "bench $benchmark" "$work/log"
  echo "bench $benchmark: done"
done

section "random access over verbs"
timeout -s KILL 60 "${run[@]}" --local 8M --stats-file "$work/stats" -- \
  "$random_access" $((32 << 20)) 2 6 3 >"$work/found" &
pid=$!
await 60 grep -q baseline "$work/found"
read -r _ baseline_kb <"$work/found"
# timeout(1) starts farpage, which starts the program.
program=$(program_of "$(child_of "$pid")")
most_kb=$(most_resident_kb "$program")
wait "$pid"
tail -n 1 "$work/found"
expect_paging "$work/stats" verbs
# The baseline is the program's memory without far memory.
limit_kb=$((baseline_kb + 8 * 1024 * 105 / 100))
echo "resident at most $most_kb kB of $limit_kb kB allowed"
[ "$most_kb" -gt $((5 * 1024)) ] || fail "the program was not watched"
[ "$most_kb" -le "$limit_kb" ] || fail "over the budget"

section "an image over verbs: pushed, verified, and two guests restored from it"
image_pages=2048
head -c $((image_pages * 4096)) /dev/urandom >"$work/guest"
over_verbs=(--coordinator http://127.0.0.1:7070 --transport verbs)
for command in "push $work/guest --name guest" "verify guest"; do
  # shellcheck disable=SC2086
  timeout -s KILL 60 "$farpage" image $command "${over_verbs[@]}" >"$work/found" 2>"$work/log" ||
    fail "image $command" "$work/log"
done
"$farpage" serve --image guest --socket "$work/guest.sock" --cache 16M --stats-file "$work/stats" \
  "${over_verbs[@]}" >"$work/ready" 2>"$work/log" &
serve_pid=$!
pids+=("$serve_pid")
await 30 test -s "$work/ready"
for guest in 1 2; do
  timeout -s KILL 60 "$restored_guest" "$work/guest.sock" "$work/guest" --seed "$guest" ||
    fail "guest $guest" "$work/log"
done
kill "$serve_pid"
wait "$serve_pid" || fail "farpage serve" "$work/log"
python3 - "$work/stats" "$image_pages" <<'CHECK'
import json, sys
stats = json.load(open(sys.argv[1]))
pages = int(sys.argv[2])
print(f"{stats['faults']}, {stats['reads']}")
assert stats["sessions"]["ended"] == 2 and stats["faults"]["lost"] == 0, stats
assert stats["faults"]["cached"] >= pages, stats
# The map of the image is read, too.
assert pages <= stats["reads"]["bytes"] // 4096 <= pages * 1.1, stats
CHECK

section "another user, where Yama lets only ancestors read a process, and the engine is killed"
sysctl -q kernel.yama.ptrace_scope=1 vm.unprivileged_userfaultfd=1
timeout -s KILL 60 setpriv --reuid 65534 --regid 65534 --clear-groups \
  "$farpage" run --local 4M --lend 64M --transport tcp -- "$random_access" $((12 << 20)) 1 10 7 \
  >"$work/found" 2>"$work/log" &
pid=$!
await 60 grep -q filled "$work/found"
pkill -9 -x farpage-engine
await 10 grep -q taken_over "$work/log"
wait "$pid" || fail "the program of another user" "$work/log"
grep "wrong_bytes 0" "$work/found" >/dev/null || fail "wrong bytes" "$work/found"
sysctl -q kernel.yama.ptrace_scope=0 vm.unprivileged_userfaultfd=0

section "a node of its own that may not pin what it lends: an error, and no program"
status=0
prlimit --memlock=8388608 setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \
  "$farpage" run --transport verbs --lend 64M -- touch "$work/started" 2>"$work/log" || status=$?
[ "$status" = 1 ] || fail "status $status, not 1" "$work/log"
grep "memlock limit is 8M" "$work/log" >/dev/null || fail "no word of the limit" "$work/log"
[ ! -e "$work/started" ] || fail "the program was started"

section "kill -9 of the only node: SIGBUS within the deadline"
"${run[@]}" --local 4M --fault-deadline 2s -- "$random_access" $((16 << 20)) 2 120 5 \
  >"$work/filled" 2>"$work/log" &
pid=$!
await 60 grep -q filled "$work/filled"
kill -9 "$node_pid"
killed_at=$SECONDS
status=0
wait "$pid" || status=$?
[ "$status" = 135 ] || fail "status $status, not 135 (SIGBUS)" "$work/log"
[ $((SECONDS - killed_at)) -le 6 ] || fail "SIGBUS after $((SECONDS - killed_at)) s" "$work/log"
grep -E 'page_lost address=0x[0-9a-f]+ page=[0-9]+ nodes=node-1 ' "$work/log" >/dev/null ||
  fail "the log does not name page and node" "$work/log"
echo "SIGBUS after at most $((SECONDS - killed_at + 1)) s"
