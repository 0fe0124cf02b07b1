# shellcheck shell=bash
# The lab's initial file system: busybox, the modules needed to reach the host's files, guest_init.
# Sourced by vm.sh, which has set CACHE, KERNEL and LAB.

# By name; modprobe adds what these need. rxe asks the crypto layer for "crc32" at run time, so no
# dependency names crc32_generic.
MODULES="virtio_mmio virtio_net virtio_console 9p 9pnet_virtio overlay
  ib_core ib_uverbs crc32_generic rdma_rxe"

copy_module() { # FILE TARGET_FOLDER: unpacked, as busybox's insmod cannot do that
  local target
  target=$2/$(basename "$1" | sed 's/\.\(xz\|zst\)$//')
  case $1 in
    *.xz) xz -dc "$1" >"$target" ;;
    *.zst) zstd -dcq "$1" >"$target" ;;
    *) cp "$1" "$target" ;;
  esac
}

build_initramfs() { # TARGET_FILE
  local work module version
  version=$(<"$KERNEL/version")
  work=$(mktemp -d "$CACHE/.initramfs.XXXXXX")
  mkdir -p "$work"/{bin,dev,proc,sys,host,share,writes,root,modules}
  cp "$(command -v busybox)" "$work/bin/busybox"
  cp "$LAB/guest_init" "$work/init"
  # shellcheck disable=SC2086
  modprobe -d "$KERNEL" -S "$version" --show-depends -a $MODULES |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/files"
  [ -s "$work/files" ] || die "no modules found below $KERNEL"
  while read -r module; do
    copy_module "$module" "$work/modules" || die "cannot copy $module"
    basename "$module" | sed 's/\.\(xz\|zst\)$//' >>"$work/modules/order"
  done <"$work/files"
  rm "$work/files"
  (cd "$work" && find . | cpio -o -H newc --quiet) >"$1.$$"
  mv "$1.$$" "$1"
  rm -rf "$work"
}

# Sets INITRAMFS; rebuilt when the kernel, the module list or guest_init change.
prepare_initramfs() {
  local key
  key=$({ echo "$MODULES"; cat "$KERNEL/version" "$LAB/guest_init" "$LAB/initramfs.sh"; } |
    md5sum | cut -c1-12)
  INITRAMFS=$KERNEL/initramfs-$key
  if [ ! -e "$INITRAMFS" ]; then
    find "$KERNEL" -maxdepth 1 -name 'initramfs-*' -mtime +7 -delete
    build_initramfs "$INITRAMFS"
  fi
}
