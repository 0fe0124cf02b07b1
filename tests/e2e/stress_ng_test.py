"""stress-ng's stressors, which are forked children, find no wrong byte in far memory."""
import unittest

from verifier import PATIENCE, PATIENT, Verifier, scaled

SECONDS = str(scaled(5, 60, 30))
LOCAL = scaled("8M", "8M", "1M")
SIZE = scaled("32M", "32M", "4M")  # four times that


class StressNg(Verifier):
    def stress(self, transport, *stressors, local=LOCAL, seconds=SECONDS):
        """`local`: a quarter of the memory of the stressors."""
        self.start_cluster(transport=transport, lend="3G")
        run = self.start_run(
            [*self.without_poison(), self.program("stress-ng"), "--verify", "--timeout", seconds,
             "--temp-path", self.folder, *stressors],
            local=local, options=["--transport", transport, *PATIENT])
        status, _ = run.finish(PATIENCE)
        self.assertEqual(status, 0, run.log())
        self.assertIn("successful run completed", run.log())
        self.assertNotIn("fail:", run.log())
        self.expect_real_paging(transport)

    def without_poison(self):
        """As root, --madvise disables two frames of RAM until the next boot (MADV_HWPOISON), where the
        kernel can."""
        return [self.program("setpriv"), "--bounding-set", "-sys_admin"]

    def vm(self, transport):
        self.stress(transport, "--vm", "1", "--vm-bytes", SIZE, "--vm-method", "all")

    def test_vm_over_shm(self):
        self.vm("shm")

    def test_vm_over_tcp(self):
        self.vm("tcp")

    def heap(self, transport):
        self.stress(transport, "--malloc", "1", "--malloc-max", str(scaled(500, 500, 60)), "--malloc-bytes", "512K",
                    "--tree", "1", "--tree-size", str(scaled(400_000, 400_000, 50_000)), "--memthrash", "1")

    def test_malloc_tree_memthrash_over_shm(self):
        self.heap("shm")

    def test_malloc_tree_memthrash_over_tcp(self):
        self.heap("tcp")

    def mappings(self, transport):
        self.stress(transport, "--mmap", "1", "--mmap-bytes", SIZE, "--mergesort", "1",
                    "--mergesort-size", str(scaled(4 << 20, 4 << 20, 512 << 10)))

    def test_mmap_mergesort_over_shm(self):
        self.mappings("shm")

    def test_mmap_mergesort_over_tcp(self):
        self.mappings("tcp")

    def moves(self, transport):
        # Halves and doubles mappings, also at other addresses; checks after each halving.
        self.stress(transport, "--mremap", "1", "--mremap-bytes", SIZE,
                    "--mremap-ops", str(scaled(4, 150, 8)), seconds=str(PATIENCE))

    def test_mremap_over_shm(self):
        self.moves("shm")

    def test_mremap_over_tcp(self):
        self.moves("tcp")

    def advice(self, transport):
        # One random advice after another for each page of 4 MiB, alternately of a file and anonymous.
        self.stress(transport, "--madvise", "1", "--madvise-ops", str(scaled(30, 1500, 20)),
                    local="1M", seconds=str(PATIENCE))

    def test_madvise_over_shm(self):
        self.advice("shm")

    def test_madvise_over_tcp(self):
        self.advice("tcp")


if __name__ == "__main__":
    unittest.main()
