#!/bin/bash
# In two lab VMs: a guest of QEMU in A has its memory on the node in B, over verbs. The emulator of
# the guest runs in an emulator itself, so the guest is small.
# guest.sh A|B FARPAGE GUEST_MEMORY GUEST_KERNEL
set -euo pipefail
farpage=$2 guest_memory=$3 guest_kernel=$4
mib=${FARPAGE_LAB_GUEST_MIB:-24}
# shellcheck source=tests/lab/run/cluster.sh
. "$(dirname "$0")/cluster.sh"

if [ "$1" = B ]; then
  serve_until_finished 280 256M verbs
  exit
fi

section "a guest with its memory in the other machine, over verbs"
kernel=$("$guest_kernel")
mkdir -p "$work/root/dev" "$work/root/modules"
cp "$guest_memory" "$work/root/init"
(cd "$work/root" && find . | cpio --quiet -o -H newc) >"$work/initramfs"
"$guest_memory" "$mib" >"$work/expected"
lab wait cluster
timeout -s KILL 260 "$farpage" run --coordinator "http://$LAB_PEER:7070" --local 24M --transport verbs \
  --stats-file "$work/stats" -- qemu-system-x86_64 -M microvm,acpi=on -accel tcg,tb-size=8 -cpu max -m 96 \
  -nodefaults -no-user-config -no-reboot -display none -serial stdio -kernel "$kernel" \
  -initrd "$work/initramfs" -append "console=ttyS0 quiet loglevel=0 panic=-1 tsc=reliable \
clocksource=tsc no_timer_check tsc_early_khz=2500000 mitigations=off guest_mib=$mib" >"$work/console" ||
  fail "the guest has not ended" "$work/console"
tr -d '\r' <"$work/console" | grep '^guest: ' | cmp "$work/expected" - || fail "wrong bytes" "$work/console"
cat "$work/expected"
expect_paging "$work/stats" verbs
lab signal finished
