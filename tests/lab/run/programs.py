"""In a lab VM: foreign programs over verbs, in the smallest form of their end-to-end tests.

  programs.py [NAME...]      those of CHECKS with these names (default: all)
"""
import os
import resource
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../e2e"))
from git_test import Git  # noqa: E402
from memcached_test import Memcached  # noqa: E402
from memory_testers_test import MemoryTesters  # noqa: E402
from postgres_test import Postgres  # noqa: E402
from programs_test import Programs  # noqa: E402
from redis_test import Redis  # noqa: E402
from stress_ng_test import StressNg  # noqa: E402

CHECKS = {
    "memtester": (MemoryTesters, "memtester"),
    "stressapptest": (MemoryTesters, "stressapptest"),
    "sort": (Programs, "sort"),
    "sqlite": (Programs, "sqlite"),
    "python": (Programs, "python"),
    "numpy": (Programs, "numpy"),
    "node": (Programs, "node"),
    "gcc": (Programs, "gcc"),
    "xz": (Programs, "xz"),
    "git": (Git, "verify"),
    "redis": (Redis, "verify"),
    "memcached": (Memcached, "verify"),
    "postgres": (Postgres, "verify"),
    "postgres-sessions": (Postgres, "sessions"),
    "stress-vm": (StressNg, "vm"),
    "stress-heap": (StressNg, "heap"),
    "stress-mappings": (StressNg, "mappings"),
    "stress-mremap": (StressNg, "moves"),
    "stress-madvise": (StressNg, "advice"),
}


def run_one(name):
    case, check = CHECKS[name]

    class OverVerbs(case):
        def runTest(self):
            begin = time.monotonic()
            getattr(self, check)("verbs")
            print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)

        def shortDescription(self):
            return name

    return unittest.TextTestRunner(verbosity=2).run(OverVerbs()).wasSuccessful()


def main():
    # Verbs pin memory, also for the user that PostgreSQL runs as.
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    names = sys.argv[1:] or list(CHECKS)
    if len(names) == 1:
        sys.exit(not run_one(names[0]))
    # Each in its own process: otherwise the peak of an earlier one would count for a later one's
    # plain run (exec() keeps ru_maxrss).
    failed = [name for name in names if subprocess.call([sys.executable, __file__, name]) != 0]
    print(f"{len(names) - len(failed)} of {len(names)} passed" + "".join(f"\nfailed: {name}" for name in failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
