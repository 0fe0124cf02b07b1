#!/bin/bash
# vm.sh - run a command in a small virtual machine (or two) that has a working RDMA device.
#
#   vm.sh [OPTIONS] -- COMMAND [ARG...]   one VM (a single word is a line of bash)
#   vm.sh [OPTIONS] --two LINE_A LINE_B   two VMs, A and B, on one Ethernet; ends when A ends
#   vm.sh --prepare                       fetch the kernel and build the initramfs, no more
#
# No KVM and no RDMA hardware is needed: QEMU emulates the CPU, the kernel is the distribution's
# newest, and rxe0 (SoftRoCE) sits on eth0 with 10.77.0.1 (B: 10.77.0.2), MTU 4096. The host's whole
# file system is visible, copy-on-write: binaries built on the host just run, and what the VM writes
# is lost with it, except in the out folder, which both VMs and the host see at the same path.
#
#   -m MB     memory of each VM (2048)         -c N     CPUs of each VM (2; with --two: 1)
#   -t SECS   time limit, boot included (120)  -o DIR   out folder, kept (default: a temporary one)
#   -b SECS   limit of one boot (30); a VM that hangs in its boot is booted again, twice at most
#   -M "A B"  modules to load as well          -a ARGS  kernel arguments to add
#   -n        no rxe0                          -v       kernel and init messages to stderr
#   -i        for latencies: idle CPUs poll (burns host CPUs, but a wake-up then costs what it does on
#             hardware), and the tick is periodic (each timer that is set is a trip to the emulator;
#             timed waits then end with a tick, every 4 ms)
#
# Exit status: the command's (A's). 124: time limit. 125: the VM died without a status (panic ...),
# or hung in each of its boots. 126: the lab could not be prepared. 130: interrupted. Nothing of it
# outlives vm.sh.
#
# In the VM: LAB_VM (A, B), LAB_IP, LAB_PEER, LAB_DEV=rxe0, LAB_GID=1 (RoCE v2, IPv4), LAB_OUT (the
# out folder), and the program `lab`: signal NAME, wait NAME, host kill|stop|cont B.
#
# FARPAGE_LAB_CACHE: where kernels are kept (~/.cache/farpage-lab). FARPAGE_LAB_KERNEL: the name of
# the kernel's meta package, if not linux-image-amd64 (Debian) or linux-image-generic (Ubuntu).
set -u -o pipefail

LAB=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
say() { echo "lab: $*" >&2; }
die() { say "$*"; exit 126; }
# shellcheck source=tests/lab/kernel.sh
. "$LAB/kernel.sh"
# shellcheck source=tests/lab/initramfs.sh
. "$LAB/initramfs.sh"

# ------------------------------------------------------------------- options ----
MEMORY_MB=2048 CPUS='' LIMIT_SECONDS=120 BOOT_SECONDS=30 OUT='' EXTRA_MODULES='' APPEND='' RXE=1 VERBOSE=0 FORM=one

usage() { sed -n '2,/^set -u/p' "$0" | sed '$d; s/^# \{0,1\}//'; }

number() { # OPTION VALUE
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "$1 needs a number, not '${2:-}'"
  echo "$2"
}

parse_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      -m) MEMORY_MB=$(number "$@") || exit; shift 2 ;;
      -c) CPUS=$(number "$@") || exit; shift 2 ;;
      -t) LIMIT_SECONDS=$(number "$@") || exit; shift 2 ;;
      -b) BOOT_SECONDS=$(number "$@") || exit; shift 2 ;;
      -o) OUT=${2:?-o needs a folder}; shift 2 ;;
      -M) EXTRA_MODULES=${2:?-M needs module names}; shift 2 ;;
      -a) APPEND+=" ${2:?-a needs kernel arguments}"; shift 2 ;;
      -n) RXE=0; shift ;;
      -i) APPEND+=" idle=poll nohz=off highres=off"; shift ;;
      -v) VERBOSE=1; shift ;;
      --prepare) FORM=prepare; shift ;;
      --two) FORM=two; shift; break ;;
      --) shift; break ;;
      -h | --help) usage; exit 0 ;;
      *) die "unknown option $1 (see vm.sh --help; the command comes after --)" ;;
    esac
  done
  COMMAND=("$@")
  case $FORM in
    one) [ $# -gt 0 ] || die "no command (see vm.sh --help)" ;;
    two) [ $# = 2 ] || die "--two takes two lines of bash, one for each VM" ;;
  esac
}

# --------------------------------------------------------------- preparation ----
need_tools() {
  local tool missing=()
  for tool in qemu-system-x86_64 busybox modprobe depmod cpio xz rdma python3 flock setpriv cc; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]} (install with: ./dev setup build lab)"
}

choose_cache() {
  CACHE=${FARPAGE_LAB_CACHE:-${HOME:+$HOME/.cache/farpage-lab}}
  [ -n "$CACHE" ] && mkdir -p "$CACHE" 2>/dev/null && [ -w "$CACHE" ] && return
  [ -z "${FARPAGE_LAB_CACHE:-}" ] || die "cannot write $CACHE (FARPAGE_LAB_CACHE)"
  CACHE=$(cd "$LAB/../.." && pwd)/build/lab
  mkdir -p "$CACHE" || die "cannot write $CACHE; set FARPAGE_LAB_CACHE"
}

# Sets TSC_KHZ; measured once for each boot of the host.
prepare_tsc() {
  local file=$CACHE/tsc_khz boot program
  boot=$(</proc/sys/kernel/random/boot_id)
  if [ "$(head -n 1 "$file" 2>/dev/null)" != "$boot" ]; then
    program=$(mktemp "$CACHE/.tsc.XXXXXX")
    cc -O2 -o "$program" "$LAB/tsc_khz.c" || die "cannot compile tsc_khz.c"
    printf '%s\n%s\n' "$boot" "$("$program")" >"$program.out"
    mv "$program.out" "$file"
    rm -f "$program"
  fi
  TSC_KHZ=$(tail -n 1 "$file")
}

prepare() {
  need_tools
  choose_cache
  prepare_kernel
  prepare_initramfs
  prepare_tsc
}

# ------------------------------------------------------------------- clean-up ----
declare -A PID=()   # of each VM's QEMU
TAILS=()            # the processes that copy output to ours
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/farpage-lab.XXXXXX") || die "no temporary folder"

# shellcheck disable=SC2317  # called by the trap
clean_up() {
  local pid
  for pid in "${PID[@]}"; do kill -KILL "$pid" 2>/dev/null; done
  for pid in "${TAILS[@]}"; do kill "$pid" 2>/dev/null; done
  wait
  rm -rf "$SCRATCH"
} 2>/dev/null # bash reports killed jobs there
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# ------------------------------------------------------------------------ VMs ----
# The folder of one VM: its settings, its command, and what comes out of it.
write_folder() { # NAME IP PEER WORD...
  local folder=$OUT/$1
  rm -rf "$folder"
  mkdir -p "$folder" || die "cannot write $folder"
  : >"$folder/stdout.log"
  : >"$folder/console.log"
  printf '%s=%q\n' IP "$2" PEER "$3" OUT "$OUT" LAB "$LAB" KERNEL "$KERNEL" RXE "$RXE" \
    EXTRA_MODULES "$EXTRA_MODULES" >"$folder/settings"
  shift 3
  {
    printf 'cd %q 2>/dev/null || cd /\n' "$PWD"
    if [ $# = 1 ]; then echo "$1"; else printf '%q ' "$@"; echo; fi
  } >"$folder/command"
}

# Starts QEMU in the background; PID[NAME] is its process. -cpu: the emulator runs `rep movsb` byte
# by byte, so the guest must not use it as a fast copy. setpriv: QEMU dies with us even if we are
# killed outright.
start_vm() { # NAME NETDEV
  local name=$1 folder=$OUT/$1 mac kernel=$KERNEL/vmlinux arguments
  [ -e "$kernel" ] || kernel=$KERNEL/boot/vmlinuz-$(<"$KERNEL/version")
  [ "$name" = A ] && mac=52:54:00:00:00:01 || mac=52:54:00:00:00:02
  arguments="console=ttyS0 quiet panic=-1 oops=panic mitigations=off cryptomgr.notests"
  arguments+=" tsc=reliable clocksource=tsc no_timer_check tsc_early_khz=$TSC_KHZ"
  arguments+=" random.trust_cpu=on lab.vm=$name$APPEND"
  setpriv --pdeathsig KILL qemu-system-x86_64 \
    -M microvm,acpi=on,rtc=on -global virtio-mmio.force-legacy=false \
    -accel tcg,thread=multi,tb-size=256 -cpu max,-erms,-fsrm,-la57 \
    -m "$MEMORY_MB" -smp "$CPUS" -nodefaults -no-user-config -no-reboot -display none \
    -kernel "$kernel" -initrd "$INITRAMFS" -append "$arguments" \
    -serial "file:$folder/console.log" \
    -device virtio-serial-device -chardev "file,id=out,path=$folder/stdout.log" \
    -device virtserialport,chardev=out,name=out \
    -netdev "$2" -device "virtio-net-device,netdev=n0,mac=$mac,host_mtu=9000" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-device,fsdev=host,mount_tag=host \
    -fsdev "local,id=share,path=$OUT,security_model=none,multidevs=remap" \
    -device virtio-9p-device,fsdev=share,mount_tag=share \
    </dev/null >"$folder/qemu.log" 2>&1 &
  PID[$name]=$!
}

# Copies a growing file to our stdout until the VM is gone.
follow() { # NAME FILE PREFIX
  tail -n +1 -s 0.25 --pid "${PID[$1]}" -f "$2" 2>/dev/null | sed -u "s/^/$3/" &
  TAILS+=("$!")
}

# The Ethernet between the VMs: one end of a pair of datagram sockets.
cable() { # OWN_END OTHER_END
  echo "dgram,id=n0,local.type=unix,local.path=$SCRATCH/$1.sock,$(
  )remote.type=unix,remote.path=$SCRATCH/$2.sock"
}

running() { [ -n "${PID[$1]:-}" ] && kill -0 "${PID[$1]}" 2>/dev/null; }

# Executes the request that VM A made with `lab host`.
serve_request() {
  local what
  [ -e "$OUT/request" ] || return 0
  what=$(<"$OUT/request")
  case $what in
    kill) kill -KILL "${PID[B]}" ;;
    stop) kill -STOP "${PID[B]}" ;;
    cont) kill -CONT "${PID[B]}" ;;
  esac
  rm -f "$OUT/request"
}

# A short sleep, by reading from a pipe without a writer: `sleep` starts a process each time, which
# on two CPUs takes a millisecond from a VM. Before 5.2 bash may miss the end of the timeout.
pause() { # DESCRIPTOR
  if [ $((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1])) -ge 502 ]; then
    read -r -t 0.04 -u "$1"
  else
    sleep 0.04
  fi
}

# True when the command of each VM has begun.
booted() {
  local name
  for name in "${!PID[@]}"; do
    [[ $(<"$OUT/$name/console.log") == *"lab: command"* ]] || return 1
  done
}

# Once a second: ends a VM that hangs in its shutdown, and sets HUNG when a VM hangs in its boot (rare,
# under the emulator). The command of the other one may have begun then: it begins again, in new VMs.
check_progress() { # SECONDS_SINCE_START
  if [ -s "$OUT/A/status" ]; then
    SHUTDOWN_SECONDS=$((SHUTDOWN_SECONDS + 1))
    if [ $SHUTDOWN_SECONDS -gt 5 ]; then kill -KILL "${PID[A]}"; fi
  elif [ -z "$BOOTED" ] && booted; then
    BOOTED=1
  elif [ -z "$BOOTED" ] && [ "$1" -ge "$BOOT_SECONDS" ]; then
    HUNG=1
    kill -KILL "${PID[A]}"
  fi
}

# Until A ends, hangs in its boot, or the time is up (then A has no status).
supervise() {
  local start=$SECONDS checked=$SECONDS silence
  exec {silence}<> <(:)
  TIME_IS_UP=0 BOOTED='' HUNG='' SHUTDOWN_SECONDS=0
  while running A; do
    if [ "$SECONDS" -ge "$DEADLINE" ]; then
      TIME_IS_UP=1
      kill -KILL "${PID[A]}"
      break
    fi
    if [ "$SECONDS" != "$checked" ]; then
      checked=$SECONDS
      check_progress $((SECONDS - start))
    fi
    [ "$FORM" = two ] && serve_request
    pause "$silence"
  done
  exec {silence}>&-
  if running B; then kill -KILL "${PID[B]}"; fi
  wait "${PID[@]}"
  PID=()
  wait "${TAILS[@]}"
  TAILS=()
} 2>/dev/null # bash reports killed jobs there

conclude() {
  local folder=$OUT/A
  if [ -s "$folder/status" ]; then exit "$(<"$folder/status")"; fi
  if [ "$TIME_IS_UP" = 1 ]; then
    tail -n 5 "$folder/console.log" >&2
    say "time limit of $LIMIT_SECONDS s reached"
    exit 124
  fi
  say "the VM ended without a status: $(cat "$folder/failure" 2>/dev/null)"
  tail -n 25 "$folder/qemu.log" "$folder/console.log" >&2
  exit 125
}

start_vms() {
  rm -f "$OUT"/signal.* "$OUT"/request*
  if [ $FORM = one ]; then
    : "${CPUS:=2}"
    write_folder A 10.77.0.1 10.77.0.1 "${COMMAND[@]}"
    start_vm A hubport,id=n0,hubid=0
    follow A "$OUT/A/stdout.log" ''
  else
    : "${CPUS:=1}"
    write_folder A 10.77.0.1 10.77.0.2 "${COMMAND[0]}"
    write_folder B 10.77.0.2 10.77.0.1 "${COMMAND[1]}"
    start_vm A "$(cable A B)"
    start_vm B "$(cable B A)"
    follow A "$OUT/A/stdout.log" 'A| '
    follow B "$OUT/B/stdout.log" 'B| '
  fi
  [ $VERBOSE = 1 ] && follow A "$OUT/A/console.log" '' >&2
}

main() {
  local boot name
  parse_options "$@"
  prepare
  if [ $FORM = prepare ]; then
    echo "$KERNEL"
    exit 0
  fi
  if [ $FORM = two ] && ! qemu-system-x86_64 -netdev help 2>/dev/null | grep -q dgram; then
    die "--two needs QEMU 7.2 or newer"
  fi
  OUT=${OUT:-$SCRATCH/out}
  { mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd -P); } || die "cannot write ${OUT:-the out folder}"
  DEADLINE=$((SECONDS + LIMIT_SECONDS))
  for boot in 1 2 3; do
    rm -f "$SCRATCH"/*.sock
    start_vms
    supervise
    [ -n "$HUNG" ] || break
    say "boot $boot of 3 hung for $BOOT_SECONDS s; the last lines of each console:"
    for name in A B; do
      if [ -e "$OUT/$name/console.log" ]; then tail -n 5 "$OUT/$name/console.log" >&2; fi
    done
  done
  conclude
}

main "$@"
