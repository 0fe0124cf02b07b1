# shellcheck shell=bash
# The lab's kernel: the distribution's own package, unpacked into the cache. Sourced by vm.sh, which
# has set CACHE and defines die and say.
#
# $CACHE/<package>/: boot/, lib/modules/, vmlinux (uncompressed, if it could be unpacked), version.
# $CACHE/current: the package in use; valid as long as apt's package lists are not newer.

# linux-image-amd64 is Debian's name, linux-image-generic Ubuntu's. Their first dependency is the
# versioned package.
kernel_package() {
  local meta=${FARPAGE_LAB_KERNEL:-} name
  for name in ${meta:-linux-image-amd64 linux-image-generic}; do
    apt-cache depends "$name" 2>/dev/null |
      awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }'
  done | head -n 1
}

# The kernel and its modules; Ubuntu splits them over three packages.
kernel_package_parts() { # PACKAGE
  local version=${1#linux-image-} part
  for part in "$1" "linux-modules-$version" "linux-modules-extra-$version"; do
    apt-cache show "$part" >/dev/null 2>&1 && echo "$part"
  done
  return 0
}

# Unpacks into the current folder what a VM without sound and graphics can use.
unpack_package() { # DEB
  dpkg-deb --fsys-tarfile "$1" | tar -x --exclude='*/drivers/gpu' --exclude='*/kernel/sound' \
    --exclude='*/drivers/media' --exclude='*/drivers/staging' --exclude='*/drivers/usb' \
    --exclude='*/net/wireless' --exclude='./usr/share'
}

fetch_kernel() { # PACKAGE
  local work package version
  work=$CACHE/.fetch
  rm -rf "$work"
  mkdir -p "$work"
  say "fetching $1 (once; kept in $CACHE)"
  (
    set -e
    cd "$work"
    for package in $(kernel_package_parts "$1"); do
      apt-get download -qq -o APT::Sandbox::User=root "$package" >&2
      unpack_package ./*.deb
      rm -f ./*.deb
    done
    [ -d lib/modules ] || ln -s usr/lib lib
    version=$(basename "$(echo lib/modules/*)")
    echo "$version" >version
    depmod -b . "$version"
    python3 "$LAB/unpack_vmlinux.py" "boot/vmlinuz-$version" vmlinux ||
      say "cannot unpack the kernel image; booting it as it is, which is slower"
  ) || { rm -rf "$work"; return 1; }
  rm -rf "${CACHE:?}/$1"
  mv -T "$work" "$CACHE/$1"
}

newest_cached_kernel() {
  local version
  for version in "$CACHE"/linux-image-*/version; do
    [ -e "$version" ] && basename "$(dirname "$version")"
  done | sort -V | tail -n 1
}

# Sets KERNEL to the folder of the newest kernel. Two labs may start at once: under a lock.
prepare_kernel() {
  local package current=$CACHE/current
  exec {lock}>"$CACHE/lock"
  flock "$lock"
  if [ -s "$current" ] && [ ! /var/lib/apt/lists -nt "$current" ]; then
    package=$(<"$current")
  else
    package=$(kernel_package)
    if [ -z "$package" ] && [ "$(id -u)" = 0 ]; then
      apt-get update -qq >&2 || true
      package=$(kernel_package)
    fi
    [ -n "$package" ] || package=$(newest_cached_kernel)
    [ -n "$package" ] || die "apt knows neither linux-image-amd64 nor linux-image-generic; run" \
      "'apt-get update', or name the package in FARPAGE_LAB_KERNEL"
  fi
  if [ ! -e "$CACHE/$package/version" ] && ! fetch_kernel "$package"; then
    say "cannot fetch $package"
    package=$(newest_cached_kernel)
    [ -n "$package" ] || die "no kernel: the first run needs the distribution's package mirror"
  fi
  echo "$package" >"$current"
  KERNEL=$CACHE/$package
  flock -u "$lock"
  exec {lock}>&-
}
