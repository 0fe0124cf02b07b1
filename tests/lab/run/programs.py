"""In a lab VM: foreign programs over verbs, in the smallest form of their end-to-end tests.

  programs.py [NAME...]      those of CHECKS with these names (default: all)
"""
import os
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


def over_verbs(name):
    case, check = CHECKS[name]

    class OverVerbs(case):
        def runTest(self):
            begin = time.monotonic()
            getattr(self, check)("verbs")
            print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)

        def shortDescription(self):
            return name

    return OverVerbs()


def main():
    suite = unittest.TestSuite(over_verbs(name) for name in sys.argv[1:] or CHECKS)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
