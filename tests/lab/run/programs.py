"""In a lab VM: foreign programs over verbs, in the smallest form of their end-to-end tests."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../e2e"))
from memory_testers_test import MemoryTesters  # noqa: E402
from programs_test import Programs  # noqa: E402


class Testers(MemoryTesters):
    def test_memtester(self):
        self.memtester("verbs")


class Tools(Programs):
    def test_xz(self):
        self.xz("verbs")


if __name__ == "__main__":
    unittest.main(defaultTest=["Testers.test_memtester", "Tools.test_xz"], verbosity=2)
