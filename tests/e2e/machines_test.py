"""Programs of several processes or machines: MPI ranks, and a guest of QEMU."""
import os
import re
import subprocess
import unittest

from cluster import BUILD
from verifier import PATIENCE, Verifier, scaled

# As in the lab (tests/lab/vm.sh): on a busy machine an emulated guest may spin forever while it
# calibrates its clock. A wrong clock does not matter here.
CLOCK = "tsc=reliable clocksource=tsc no_timer_check tsc_early_khz=2500000 mitigations=off"
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")


class Machines(Verifier):
    def mpi(self, transport):
        program = self.path("exchange")
        built = subprocess.run([self.program("mpicc"), "-O2", "-o", program, os.path.join(PROGRAMS, "exchange.c")],
                               capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(built.returncode, 0, built.stderr)
        # Messages go through shared memory: process_vm_writev() into far memory is not safe.
        self.compare([self.program("mpirun"), "--allow-run-as-root", "--oversubscribe", "--mca",
                      "btl_vader_single_copy_mechanism", "none", "-n", "2", program, str(scaled(16, 128)),
                      str(scaled(4, 20))], transport, local="12M")

    def test_openmpi_over_shm(self):
        self.mpi("shm")

    def test_openmpi_over_tcp(self):
        self.mpi("tcp")

    def guest(self):
        """The command of a guest with 512 MiB, whose only program is guest_memory."""
        kernel = subprocess.run([os.path.join(PROGRAMS, "guest_kernel.sh")], capture_output=True, text=True,
                                timeout=PATIENCE, check=False)
        self.assertEqual(kernel.returncode, 0, kernel.stderr)
        with open(os.path.join(BUILD, "tests", "guest_memory"), "rb") as init:
            packed = cpio([("dev", 0o040755, b""), ("init", 0o100755, init.read())])
        with open(self.path("initramfs"), "wb") as file:
            file.write(packed)
        return [self.program("qemu-system-x86_64"), "-M", "microvm,acpi=on", "-accel", "tcg", "-cpu", "max",
                "-m", "512", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
                "-kernel", kernel.stdout.strip(), "-initrd", self.path("initramfs"), "-append",
                f"console=ttyS0 quiet loglevel=0 panic=-1 {CLOCK} guest_mib={scaled(320, 400)}"]

    @staticmethod
    def result_of(console):
        return re.findall(rb"guest: .*", console)

    def qemu(self, transport):
        command = self.guest()
        expected = self.result_of(self.plain(command)[0])
        self.assertEqual(len(expected), 1)
        self.assertIn(b" 0 wrong words", expected[0])
        self.start_cluster(transport=transport, lend="2G")
        self.assertEqual(self.result_of(self.far(command, transport, "128M")), expected)
        self.expect_real_paging(transport)

    def test_qemu_over_shm(self):
        self.qemu("shm")

    def test_qemu_over_tcp(self):
        self.qemu("tcp")


def cpio(entries):
    """An archive in the "newc" format, which the kernel unpacks as its first file system."""
    archive = b""
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        archive += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        archive += bytes(-len(archive) % 4) + content
        archive += bytes(-len(archive) % 4)
    return archive


if __name__ == "__main__":
    unittest.main()
