#!/usr/bin/env python3
"""The shim needs libc alone, exports the functions it interposes and no other, never calls malloc."""
import re
import subprocess
import sys

EXPORTED = {"_ZnamSt11align_val_t", "_ZnamSt11align_val_tRKSt9nothrow_t", "_ZnwmSt11align_val_t",
            "_ZnwmSt11align_val_tRKSt9nothrow_t", "__open64_2", "__open_2", "__openat64_2", "__openat_2",
            "aligned_alloc", "close", "close_range", "closefrom",
            "daemon", "dlmopen", "dlopen", "fcntl", "fcntl64", "fork", "forkpty", "io_uring_register_buf_ring",
            "io_uring_register_buffers", "io_uring_register_buffers_tags",
            "io_uring_register_buffers_update_tag", "madvise", "memalign", "mlock", "mlock2", "mlockall", "mmap",
            "mmap64", "mremap", "munlock", "munlockall", "munmap", "open", "open64", "openat",
            "openat64", "pkey_mprotect", "posix_madvise", "posix_memalign", "process_madvise", "syscall"}
FORBIDDEN = re.compile(r"malloc|calloc|realloc|free|_Z|__cxa_(?!finalize)|__asan|__ubsan|__tsan|"
                       r"__tls_get_addr|__stack_chk_fail|pthread_create")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(library):
    errors = []
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", library)))
    if needed != {"libc.so.6"}:
        errors.append(f"needs {sorted(needed)}, wanted libc.so.6 alone")
    exported, used = set(), set()
    for line in run("nm", "--dynamic", "--without-symbol-versions", library).splitlines():
        kind, name = line.split()[-2:]
        (used if kind in "Uw" else exported).add(name)
    if exported != EXPORTED:
        errors.append(f"exports {sorted(exported ^ EXPORTED)} too much or too little")
    errors += [f"uses {name}" for name in sorted(used) if FORBIDDEN.search(name)]
    for line in errors:
        print(line)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
