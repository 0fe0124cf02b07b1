# Shared by the lab's scripts. Sourced, with farpage=PATH. All processes end with the shell.
# shellcheck shell=bash
export LC_ALL=C FARPAGE_LOG_LEVEL=warning
work=$(mktemp -d)
: "${farpage:?}"
pids=()
end() {
  [ ${#pids[@]} = 0 ] || kill -9 "${pids[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap end EXIT

section() { echo "-- $*"; }
fail() { # MESSAGE [FILE]
  echo "FAILED: $1" >&2
  [ -z "${2:-}" ] || cat "$2" >&2
  exit 1
}

await() { # SECONDS COMMAND...
  local tries=$(($1 * 20))
  shift
  until "$@" 2>/dev/null; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "waited in vain for: $*"
    sleep 0.05
  done
}

start_coordinator() { # LISTEN [OPTION...]
  coordinator_at=http://$1
  "$farpage" coordinator --listen "$@" >"$work/coordinator" &
  pids+=($!)
  await 20 test -s "$work/coordinator"
}

start_node() { # NAME BYTES TRANSPORTS [OPTION...]
  local name=$1 lend=$2 transports=$3
  shift 3
  "$farpage" node --coordinator "$coordinator_at" --name "$name" --lend "$lend" \
    --transports "$transports" "$@" >"$work/$name" &
  node_pid=$!
  pids+=("$node_pid")
  await 30 test -s "$work/$name"
}

# The lending machine runs this until the other one signals its end.
serve_until_finished() { # SECONDS BYTES TRANSPORTS [OPTION...]
  local seconds=$1
  shift
  start_coordinator "$LAB_IP:7070" --insecure
  start_node node-b "$@" --listen-agent "$LAB_IP:0" --insecure
  lab signal cluster
  lab wait finished "$seconds"
}

child_of() { # PID
  local child
  read -r child _ <"/proc/$1/task/$1/children"
  echo "$child"
}

program_of() { # PID of a farpage run; its other children are parts of farpage
  local child children
  read -r -a children <"/proc/$1/task/$1/children"
  for child in "${children[@]}"; do
    case $(<"/proc/$child/comm") in
      farpage*) ;;
      *) echo "$child" ;;
    esac
  done
}

# The largest VmRSS of a process during its lifetime.
most_resident_kb() { # PID
  local most=0 key value
  while [ -d "/proc/$1" ]; do
    while read -r key value _; do
      [ "$key" = VmRSS: ] && [ "$value" -gt "$most" ] && most=$value
    done <"/proc/$1/status" 2>/dev/null || true
    sleep 0.1
  done
  echo "$most"
}

make_lines() { # MEGABYTES: lines of 500 random characters, the same each time
  head -c $(($1 * 750000)) /dev/zero |
    openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 00 2>/dev/null |
    base64 -w 500
}

expect_paging() { # STATS_FILE TRANSPORT
  python3 - "$@" <<'CHECK'
import json, sys
target = json.load(open(sys.argv[1]))["targets"][0]
remote, written = target["faults"]["remote"], target["evictions"]["written"]
latency = target["latency"]["remote_fault"]
print(f"{target['transports']}: {remote} remote faults, {written} pages written back, "
      f"p50 {latency['p50_us']:.0f} us, p99 {latency['p99_us']:.0f} us")
assert target["transports"] == sys.argv[2], target
assert remote > 500 and written > 500 and target["faults"]["failed"] == 0, target
CHECK
}
