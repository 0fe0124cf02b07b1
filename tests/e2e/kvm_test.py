"""A guest of KVM has far memory: its faults go through the kernel's KVM to the pager, and what it has written comes
back. The monitor is a program of the tests (programs/kvm_guest.cc): the hosts that run them do not always have a KVM
that boots an unmodified kernel.
"""
import os
import unittest

from cluster import BUILD, MIB, EndToEnd, Sampler, Service, far_memory_at_one_moment

KVM_GUEST = os.path.join(BUILD, "tests", "kvm_guest")
PAGES = 24_576  # 96 MiB
LOCAL_MIB = 24


@unittest.skipUnless(os.access("/dev/kvm", os.R_OK | os.W_OK), "/dev/kvm cannot be used here")
class Kvm(EndToEnd):
    def run_guest(self, transport):
        self.start_cluster(transport=transport)
        process = self.start_run([KVM_GUEST, str(PAGES), "3"], local=f"{LOCAL_MIB}M",
                                 options=["--transport", transport])
        with Sampler(lambda: far_memory_at_one_moment(process.pid), pause=0.05) as resident:
            status, output = process.finish()
        self.assertEqual((status, output), (0, b"kvm_guest: %d pages, wrong words: guest 0, monitor 0\n" % PAGES),
                         process.log())
        self.expect_real_paging(transport)
        print("most far memory", resident.most // MIB, "MiB")
        self.assertGreater(resident.most, 0)
        self.assertLessEqual(resident.most, LOCAL_MIB * MIB * 105 // 100)

    def test_memory_of_a_guest_is_far_over_shm(self):
        self.run_guest("shm")

    def test_memory_of_a_guest_is_far_over_tcp(self):
        self.run_guest("tcp")

    def test_shared_memory_of_a_guest_and_its_device_is_far(self):
        self.start_cluster(transport="tcp")
        socket, self.stats_path = self.path("vm.sock"), self.path("stats.json")
        pager = self._owned(Service(
            ["share", "--socket", socket, "--local", f"{LOCAL_MIB}M", "--processes", "2", "--coordinator", self.url,
             "--transport", "tcp", "--stats-file", self.stats_path], self._log("share")))
        process = self.start_process([KVM_GUEST, str(PAGES), "3", socket])
        status, output = process.finish()
        self.assertEqual((status, output), (0, b"kvm_guest: %d pages, wrong words: guest 0, monitor 0\n" % PAGES),
                         process.log() + pager.log())
        self.assertEqual(pager.finish(60)[0], 0, pager.log())
        self.expect_real_paging("tcp")


if __name__ == "__main__":
    unittest.main()
