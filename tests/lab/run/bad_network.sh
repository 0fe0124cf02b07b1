#!/bin/bash
# In two lab VMs: coordinator and node in B, `farpage run -- random_access` in A over verbs, while
# netem disturbs what both machines send: no byte is wrong, and the program succeeds.
# bad_network.sh A|B FARPAGE RANDOM_ACCESS
set -euo pipefail
farpage=$2 random_access=$3
# shellcheck source=tests/lab/run/cluster.sh
. "$(dirname "$0")/cluster.sh"

networks=("loss 1%" "delay 2ms 1ms" "delay 2ms reorder 20% 50%" "duplicate 5%" "corrupt 1%")
modprobe sch_netem

# Only B's delays vary: A's WRITEs would hardly ever arrive in sequence, and rxe, which restarts at
# the first missing packet, would need minutes.
spoil() { # MACHINE NETWORK
  local network=$2
  [ "$*" != "A delay 2ms 1ms" ] || network="delay 2ms"
  # shellcheck disable=SC2086
  tc qdisc replace dev eth0 root netem limit 10000 $network
}

heal() {
  tc qdisc del dev eth0 root
}

# The counters of the device since its creation, and the drops of netem.
counts_to() { # FILE
  (cd "/sys/class/infiniband/$LAB_DEV/ports/1/hw_counters" && grep . -- *) >"$1"
  tc -s qdisc show dev eth0 | sed -n 's/.*(dropped \([0-9]*\),.*/netem_dropped:\1/p' >>"$1"
}

if [ "$1" = B ]; then
  start_coordinator "$LAB_IP:7070" --insecure
  start_node node-b 64M verbs --listen-agent "$LAB_IP:0" --insecure
  lab signal cluster
  for i in "${!networks[@]}"; do
    lab wait "next-$i" 100
    spoil "$1" "${networks[i]}"
    counts_to "$LAB_OUT/B-before-$i"
    lab signal "spoiled-$i"
    lab wait "ended-$i" 100
    counts_to "$LAB_OUT/B-after-$i"
    heal
    lab signal "healed-$i"
  done
  lab wait finished 100
  exit
fi

# Checks that the network was as bad as requested, and that the program paged over it.
expect_bad_network() { # NUMBER STATS_FILE
  python3 - "$LAB_OUT" "$@" "${networks[$1]}" <<'CHECK'
import json, sys
out, number, stats, network = sys.argv[1:]

def counts(machine, when):
    lines = open(f"{out}/{machine}-{when}-{number}").read().split()
    return {name: int(value) for name, value in (line.split(":") for line in lines)}

def counted(*names):
    return sum(counts(machine, "after")[name] - counts(machine, "before")[name]
               for machine in "AB" for name in names)

target = json.load(open(stats))["targets"][0]
remote, written = target["faults"]["remote"], target["evictions"]["written"]
wire = target["latency"]["wire"]
sent, received, dropped = counted("sent_pkts"), counted("rcvd_pkts"), counted("netem_dropped")
disorder = counted("out_of_seq_request", "rcvd_seq_err")
print(f"{network}: {remote} remote faults, {target['prefetched_pages']} pages prefetched, {written} "
      f"written back, {target['write_failures']} WRITEs and {target['retries']} READs failed and were "
      f"tried again, {sent} packets sent, {received} received, {dropped} dropped by netem, "
      f"{disorder} times out of sequence, READ p50 {wire['p50_us']:.0f} us")
assert target["transports"] == "verbs" and target["faults"]["failed"] == 0, target
assert remote > 100 and written > 1000, target
kind = network.split()[0] if "reorder" not in network else "reorder"
assert {"loss": dropped > 0,
        "delay": wire["p50_us"] > 1500,  # each way takes a millisecond at least
        "reorder": disorder > 0,
        "duplicate": received > sent,
        "corrupt": sent - received - dropped > 10}[kind], "the network was not that bad"
CHECK
}

lab wait cluster
for i in "${!networks[@]}"; do
  section "random access over verbs, ${networks[i]}"
  lab signal "next-$i"
  lab wait "spoiled-$i"
  spoil "$1" "${networks[i]}"
  counts_to "$LAB_OUT/A-before-$i"
  timeout -s KILL 80 "$farpage" run --coordinator "http://$LAB_PEER:7070" --local 2M \
    --transport verbs --retry-cnt 6 --fault-deadline 40s --stats-file "$work/stats" -- \
    "$random_access" $((8 << 20)) 2 2 "$i" >"$work/found" || fail "status $?" "$work/found"
  counts_to "$LAB_OUT/A-after-$i"
  heal
  lab signal "ended-$i"
  lab wait "healed-$i"
  grep ' wrong_bytes 0$' "$work/found" || fail "wrong bytes" "$work/found"
  expect_bad_network "$i" "$work/stats"
  echo "$SECONDS s since the start"
done
lab signal finished
