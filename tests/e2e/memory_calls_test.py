"""Every memory call keeps its meaning on remote memory (programs/memory_calls.cc)."""
import ctypes
import os
import subprocess
import unittest

from cluster import BUILD, EndToEnd

PROGRAM = os.path.join(BUILD, "tests", "memory_calls")
PTRACE_PEEKDATA, PTRACE_ATTACH, PTRACE_DETACH = 2, 16, 17


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class MemoryCalls(EndToEnd):
    def run_scenario(self, name, local="16M", options=("--lend", "512M")):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        status, _, log = self.run_far([PROGRAM, name], local=local, options=options)
        self.assertEqual(status, 0, log)
        self.assertGreater(self.stats()["evictions"]["written"], 0)
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_unmapped_memory_is_gone_and_the_rest_stays(self):
        self.run_scenario("unmap")

    def test_mremap_grows_shrinks_and_moves(self):
        self.run_scenario("remap")

    def test_mremap_to_a_fixed_place(self):
        self.run_scenario("remap-fixed")

    def test_mremap_that_keeps_the_old_mapping(self):
        self.run_scenario("remap-and-keep")

    def test_closed_pages_are_evicted(self):
        self.run_scenario("closed-pages")

    def test_bare_system_calls_are_seen(self):
        self.run_scenario("bare-calls")

    def test_advice_for_fork(self):
        status, _, log = self.run_far([PROGRAM, "fork-advice"], local="256M",
                                      options=["--lend", "512M"])
        self.assertEqual(status, 0, log)

    def test_pageout_evicts_and_willneed_brings_in(self):
        self.run_scenario("pageout-and-willneed")

    def test_what_is_given_up_reads_as_zeros(self):
        self.run_scenario("give-up")

    def test_sequential_advice_fetches_ahead_at_once(self):
        self.run_scenario("sequential")

    def test_random_advice_fetches_nothing_ahead(self):
        self.run_scenario("random")

    def test_locked_memory_stays_up_to_the_budget(self):
        self.run_scenario("lock")

    def test_mlockall_locks_what_is_and_what_comes(self):
        self.run_scenario("lock-all", local="256M")

    def test_mlockall_beyond_the_budget_is_refused(self):
        self.run_scenario("lock-all-refused")

    def test_direct_io_loses_nothing(self):
        self.run_scenario("direct-io")

    def test_registered_buffers_of_a_ring_stay(self):
        self.run_scenario("ring-buffers")

    def test_futexes_on_far_memory(self):
        self.run_scenario("futexes")

    def test_signals_in_the_middle_of_faults(self):
        self.run_scenario("signals")

    def test_threads_that_end(self):
        self.run_scenario("threads")

    def test_a_library_whose_constructor_allocates(self):
        self.run_scenario("library")

    def test_other_processes_see_the_bytes_or_an_error(self):
        process = self.start_run([PROGRAM, "looked-at"], local="16M", options=["--lend", "256M"],
                                 stdin=subprocess.PIPE)
        pid, address, word = map(int, process.popen.stdout.readline().split())
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.restype = ctypes.c_long
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

        def peek(at):
            ctypes.set_errno(0)
            value = libc.ptrace(PTRACE_PEEKDATA, pid, at, None)
            return value & (1 << 64) - 1, ctypes.get_errno()

        def read(at):
            seen = ctypes.create_string_buffer(8)
            here, there = Vector(ctypes.addressof(seen), 8), Vector(at, 8)
            got = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            return got, int.from_bytes(seen.raw, "little")

        self.assertEqual(libc.ptrace(PTRACE_ATTACH, pid, None, None), 0)
        os.waitpid(pid, 0)
        try:
            # The kernel does not wait for userfaultfd here: an error, not a zero.
            value, error = peek(address)
            self.assertTrue(error != 0 or value == word, (value, error))
            self.assertEqual(read(address), (8, word))
            self.assertEqual(peek(address), (word, 0))  # resident now
        finally:
            libc.ptrace(PTRACE_DETACH, pid, None, None)
        process.send(b"\n")
        self.assertEqual(process.finish()[0], 0, process.log())


if __name__ == "__main__":
    unittest.main()
