"""Guests of an unmodified QEMU with far memory: every byte is right, whatever kind of memory QEMU gives its guest,
and the statistics tell which kinds become far (docs/vm.md).

The CPU is emulated (TCG). The kernel is that of the lab, and the only program of the guest fills and checks memory
(programs/guest_memory.cc).
"""
import os
import re
import subprocess
import unittest

from cluster import BUILD, MIB, Sampler, child_of, far_memory_at_one_moment, resident_bytes, wait_until
from verifier import PATIENCE, PATIENT, Verifier, scaled

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
GUEST_MEMORY = os.path.join(BUILD, "tests", "guest_memory")
# As in the lab (tests/lab/vm.sh): on a busy machine an emulated guest may spin forever while it
# calibrates its clock. A wrong clock does not matter here.
CLOCK = "tsc=reliable clocksource=tsc no_timer_check tsc_early_khz=2500000 mitigations=off"
MEMORY_MIB = 512
LOCAL_MIB = 128
# How much of its memory a guest fills: more than may be here.
FILLED_MIB = 160
MUCH_MIB = scaled(320, 400)


class Qemu(Verifier):
    def setUp(self):
        super().setUp()
        self.filled_mib = FILLED_MIB

    def guest(self, *options):
        """The command of a guest; `options` are those of QEMU that differ between tests."""
        kernel = subprocess.run([os.path.join(PROGRAMS, "guest_kernel.sh")], capture_output=True, text=True,
                                timeout=PATIENCE, check=False)
        self.assertEqual(kernel.returncode, 0, kernel.stderr)
        with open(GUEST_MEMORY, "rb") as init:
            packed = cpio([("dev", 0o040755, b""), ("init", 0o100755, init.read())])
        with open(self.path("initramfs"), "wb") as file:
            file.write(packed)
        return [self.program("qemu-system-x86_64"), "-M", "microvm,acpi=on", "-accel", "tcg", "-cpu", "max",
                "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
                "-serial", "stdio", "-kernel", kernel.stdout.strip(), "-initrd", self.path("initramfs"), "-append",
                f"console=ttyS0 quiet loglevel=0 panic=-1 {CLOCK} guest_mib={self.filled_mib}", *options]

    def backend(self, kind, *properties):
        """Options that make a memory object of QEMU the memory of the guest."""
        words = [f"memory-backend-{kind}", "id=memory", f"size={MEMORY_MIB}M", *properties]
        return ["-object", ",".join(words), "-machine", "memory-backend=memory"]

    def start_guest(self, *options, transport="shm"):
        self.start_cluster(transport=transport, lend="2G")
        return self.start_run(self.guest(*options), local=f"{LOCAL_MIB}M",
                              options=["--transport", transport, *PATIENT])

    def expect_right_result(self, process):
        """Waits for the end of the guest: it must print what its program prints on this host."""
        expected = subprocess.run([GUEST_MEMORY, str(self.filled_mib)], capture_output=True, timeout=PATIENCE,
                                  check=True)
        self.assertRegex(expected.stdout, rb"^guest: \d+ MiB, 0 wrong words, checksum [0-9a-f]{16}\n$")
        status, console = process.finish(PATIENCE)
        self.assertEqual(status, 0, process.log()[-3000:])
        found = re.findall(rb"guest: [^\r\n]*", console)
        self.assertEqual(found, [expected.stdout.strip()], console[-3000:])

    def far_mib(self):
        """How much has become far: each page begins as zeros, and begins anew when it has left as zeros."""
        stats = self.stats()
        return (stats["faults"]["zero"] + stats["zero_pages_ahead"]) * 4096 // MIB

    def expect_far_memory(self, process, transport="shm"):
        """The memory of the guest is far."""
        self.expect_right_result(process)
        self.expect_real_paging(transport)
        print(f"{self.far_mib()} MiB became far")
        self.assertGreaterEqual(self.far_mib(), self.filled_mib)

    def run_with_local_memory(self, *options):
        """The memory of the guest stays here, beside the budget; only QEMU's own memory is far."""
        process = self.start_guest(*options)
        with Sampler(lambda: resident_bytes(child_of(process.pid)), pause=0.05) as resident:
            self.expect_right_result(process)
        print(f"{self.far_mib()} MiB became far, at most {resident.most // MIB} MiB were resident")
        self.assertGreaterEqual(resident.most, (LOCAL_MIB + self.filled_mib) * MIB)
        self.assertLess(self.far_mib(), LOCAL_MIB)
        self.assertEqual(self.stats()["faults"]["remote"], 0)
        self.assertEqual(self.stats()["evictions"]["written"], 0)

    def run_by_default(self, transport):
        self.filled_mib = MUCH_MIB
        process = self.start_guest(transport=transport)
        with Sampler(lambda: far_memory_at_one_moment(process.pid), pause=0.2) as resident:
            self.expect_far_memory(process, transport)
        print("most far memory", resident.most // MIB, "MiB")
        self.assertGreater(resident.most, 0)
        self.assertLessEqual(resident.most, LOCAL_MIB * MIB * 105 // 100)

    def test_memory_by_default_is_far_over_shm(self):
        self.run_by_default("shm")

    def test_memory_by_default_is_far_over_tcp(self):
        self.run_by_default("tcp")

    def test_preallocated_memory_is_far(self):
        self.expect_far_memory(self.start_guest(*self.backend("ram", "prealloc=on")))
        # QEMU has touched all of it before the guest began; what has no room has left at once.
        self.assertGreaterEqual(self.far_mib(), MEMORY_MIB)
        self.assertGreaterEqual(self.stats()["evictions"]["zero"] * 4096, (MEMORY_MIB - LOCAL_MIB) * MIB)

    def test_memory_of_a_sandboxed_machine_is_far(self):
        process = self.start_guest("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,"
                                               "resourcecontrol=deny")
        wait_until(lambda: seccomp_modes(child_of(process.pid)) == {"2"} or process.popen.poll() is not None,
                   "each thread has a filter of system calls")
        self.assertIsNone(process.popen.poll(), process.log())
        self.expect_far_memory(process)

    def test_locked_memory_above_the_budget_is_refused(self):
        process = self.start_guest("-overcommit", "mem-lock=on")
        self.assertEqual(process.finish()[0], 1, process.log())
        self.assertIn("mlockall: Cannot allocate memory", process.log())

    def test_shared_memory_stays_local(self):
        self.run_with_local_memory(*self.backend("memfd", "share=on"))

    def test_private_memory_of_a_file_stays_local(self):
        self.run_with_local_memory(*self.backend("file", f"mem-path={self.path('memory')}"))

    def test_shared_memory_of_a_file_stays_local(self):
        self.run_with_local_memory(*self.backend("file", f"mem-path={self.path('memory')}", "share=on"))


def seccomp_modes(pid):
    """Of all threads, the shim's agent too; 2 is a filter."""
    modes = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as file:
                modes |= {line.split()[1] for line in file if line.startswith("Seccomp:")}
    except (FileNotFoundError, ProcessLookupError):
        pass
    return modes


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
