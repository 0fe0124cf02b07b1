#!/usr/bin/env python3
"""The shim needs libc alone, exports the functions it interposes and no other, never calls malloc."""
import re
import subprocess
import sys

EXPORTED = {"close", "close_range", "closefrom", "daemon", "fork", "forkpty", "madvise", "mmap", "mmap64",
            "mremap", "munmap", "posix_madvise"}
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
