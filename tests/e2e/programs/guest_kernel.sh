#!/bin/bash
# Prints the path of an uncompressed kernel that QEMU boots: that of the lab (tests/lab/kernel.sh).
set -u -o pipefail
LAB=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../lab" && pwd)
say() { echo "guest_kernel: $*" >&2; }
die() { say "$*"; exit 1; }
# shellcheck source=tests/lab/kernel.sh
. "$LAB/kernel.sh"
CACHE=${FARPAGE_LAB_CACHE:-$HOME/.cache/farpage-lab}
mkdir -p "$CACHE" || die "cannot write $CACHE; set FARPAGE_LAB_CACHE"
prepare_kernel
if [ -e "$KERNEL/vmlinux" ]; then
  echo "$KERNEL/vmlinux"
else
  echo "$KERNEL/boot/vmlinuz-$(<"$KERNEL/version")"
fi
