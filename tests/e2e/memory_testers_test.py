"""Programs that write patterns and look for wrong bits find none in far memory."""
import unittest

from verifier import FORM, Verifier, scaled


class MemoryTesters(Verifier):
    def memtester(self, transport):
        # The full form has the tests of 64 passes and more.
        masks = {"short": "0x180ff", "full": "0x1ffff", "lab": "0x1"}
        size = scaled(12, 64)
        # It tests what it can lock; where it may lock nothing, it tests the size that was requested.
        unlocked = ["setpriv", "--bounding-set", "-ipc_lock", "prlimit", "--memlock=0"]
        self.compare([*unlocked, self.program("memtester"), f"{size}M", "1"], transport,
                     local=f"{size // 4 or 1}M",
                     output=False, environment={"MEMTESTER_TEST_MASK": masks[FORM]})

    def test_memtester_over_shm(self):
        self.memtester("shm")

    def test_memtester_over_tcp(self):
        self.memtester("tcp")

    def stressapptest(self, transport):
        size = scaled(48, 512, 8)
        self.start_cluster(transport=transport, lend="1G")
        output = self.far([self.program("stressapptest"), "-M", str(size), "-s", str(scaled(4, 60)),
                           "-m", "1", "-C", "1", "-i", "1"], transport, f"{size // 4}M")
        self.assertIn(b"Status: PASS", output)
        self.assertIn(b"0 hardware incidents, 0 errors", output)
        self.expect_real_paging(transport)

    def test_stressapptest_over_shm(self):
        self.stressapptest("shm")

    def test_stressapptest_over_tcp(self):
        self.stressapptest("tcp")


if __name__ == "__main__":
    unittest.main()
