"""Random reads and writes of four times the local memory: no wrong byte, never over the budget.

FARPAGE_SOAK_SECONDS and FARPAGE_SOAK_MIB make it as long and large as wanted
(soak_random_access.sh).
"""
import os
import unittest

from cluster import EndToEnd, MIB, RANDOM_ACCESS, Sampler, child_of, resident_bytes

SECONDS = int(os.environ.get("FARPAGE_SOAK_SECONDS", "10"))
BYTES = int(os.environ.get("FARPAGE_SOAK_MIB", "128")) * MIB
BUDGET = BYTES // 4


class RandomAccess(EndToEnd):
    def check(self, transport):
        self.start_cluster(transport=transport, lend=f"{BYTES // MIB + 192}M")
        process = self.start_run([RANDOM_ACCESS, str(BYTES), "2", str(SECONDS), "7"],
                                 local=str(BUDGET), options=["--transport", transport])
        # Everything but far memory: code, libraries, stacks, and the table of page contents, which is
        # shared memory and always resident.
        limit = self.read_baseline(process) + BUDGET * 105 // 100
        program = child_of(process.pid)
        with Sampler(lambda: resident_bytes(program)) as sampler:
            status, output = process.finish(SECONDS * 3 + 120)
        print(f"{transport}: {output.decode().split()[1:]}, resident at most {sampler.most} of "
              f"{limit} allowed, {sampler.samples} samples", flush=True)
        self.assertEqual(status, 0, process.log())
        self.assertIn(b"wrong_bytes 0\n", output)
        self.expect_real_paging(transport)
        self.assertGreater(sampler.samples, 50)
        self.assertLessEqual(sampler.most, limit)

    def test_over_shm(self):
        self.check("shm")

    def test_over_tcp(self):
        self.check("tcp")

    def over_verbs(self):
        """By name, in the lab VM: soak_random_access.sh --lab."""
        self.check("verbs")


if __name__ == "__main__":
    unittest.main()
