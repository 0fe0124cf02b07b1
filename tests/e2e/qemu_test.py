"""Guests of an unmodified QEMU with far memory: every byte is right, whatever kind of memory QEMU gives its guest,
and the statistics tell which kinds become far (docs/vm.md).

The CPU is emulated (TCG). The kernel is that of the lab, and the only program of the guest fills and checks memory
(programs/guest_memory.cc).
"""
import os
import random
import re
import subprocess
import unittest

from cluster import BUILD, MIB, Sampler, child_of, far_memory_at_one_moment, resident_bytes, wait_until
from verifier import PATIENCE, PATIENT, Verifier, scaled

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
GUEST_MEMORY = os.path.join(BUILD, "tests", "guest_memory")
GUEST_DISK = os.path.join(BUILD, "tests", "guest_disk")
# As in the lab (tests/lab/vm.sh): on a busy machine an emulated guest may spin forever while it
# calibrates its clock. A wrong clock does not matter here.
CLOCK = "tsc=reliable clocksource=tsc no_timer_check tsc_early_khz=2500000 mitigations=off"
MEMORY_MIB = 512
LOCAL_MIB = 128
# How much of its memory a guest fills: more than may be here.
FILLED_MIB = 160
MUCH_MIB = scaled(320, 400)
DISK_MIB = 160


class Qemu(Verifier):
    def setUp(self):
        super().setUp()
        self.filled_mib = FILLED_MIB

    def output_of(self, *command):
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def guest(self, *options, program=GUEST_MEMORY, modules=()):
        """The command of a guest; `options` are those of QEMU that differ between tests."""
        kernel = self.output_of(os.path.join(PROGRAMS, "guest_kernel.sh")).decode().strip()
        files = [("dev", 0o040755, b""), ("init", 0o100755, contents(program)), ("modules", 0o040755, b"")]
        files += [(f"modules/{number:02d}-{os.path.basename(path)}", 0o100644, self.unpacked(path))
                  for number, path in enumerate(self.files_of(kernel, modules))]
        with open(self.path("initramfs"), "wb") as file:
            file.write(cpio(files))
        return [self.program("qemu-system-x86_64"), "-M", "microvm,acpi=on", "-accel", "tcg", "-cpu", "max",
                "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
                "-serial", "stdio", "-kernel", kernel, "-initrd", self.path("initramfs"), "-append",
                f"console=ttyS0 quiet loglevel=0 panic=-1 {CLOCK} guest_mib={self.filled_mib}", *options]

    def files_of(self, kernel, modules):
        """Modules of the guest's kernel and those that they need, in the order in which they can be loaded."""
        if not modules:
            return []
        folder = kernel[:kernel.index("/boot/")] if "/boot/" in kernel else os.path.dirname(kernel)
        version = contents(os.path.join(folder, "version")).decode().strip()
        lines = self.output_of(self.program("modprobe"), "-d", folder, "-S", version, "--show-depends", "-a", *modules)
        return list(dict.fromkeys(line.split()[1] for line in lines.decode().splitlines() if line.startswith("insmod")))

    def unpacked(self, path):
        unpack = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dcq"]}.get(os.path.splitext(path)[1])
        return self.output_of(*unpack, path) if unpack else contents(path)

    def backend(self, kind, *properties):
        """Options that make a memory object of QEMU the memory of the guest."""
        words = [f"memory-backend-{kind}", "id=memory", f"size={MEMORY_MIB}M", *properties]
        return ["-object", ",".join(words), "-machine", "memory-backend=memory"]

    def start_guest(self, *options, transport="shm", **more):
        self.start_cluster(transport=transport, lend="2G")
        return self.start_run(self.guest(*options, **more), local=f"{LOCAL_MIB}M",
                              options=["--transport", transport, *PATIENT])

    def expect_right_result(self, process):
        """Waits for the end of the guest: it must print what its program prints on this host."""
        expected = self.output_of(GUEST_MEMORY, str(self.filled_mib))
        self.assertRegex(expected, rb"^guest: \d+ MiB, 0 wrong words, checksum [0-9a-f]{16}\n$")
        self.expect_line(process, expected.strip())

    def expect_line(self, process, line):
        """Waits for the end of the guest, whose program prints one line."""
        status, console = process.finish(PATIENCE)
        self.assertEqual(status, 0, process.log()[-3000:])
        self.assertEqual(re.findall(rb"guest: [^\r\n]*", console), [line], console[-3000:])

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

    def run_with_disk(self, access):
        """QEMU reads and writes the guest's memory for a disk, which the guest inverts."""
        content = random.Random(7).randbytes(DISK_MIB * MIB)
        with open(self.path("disk"), "wb") as file:
            file.write(content)
        process = self.start_guest(
            "-global", "virtio-mmio.force-legacy=false", "-device", "virtio-blk-device,drive=disk", "-drive",
            f"file={self.path('disk')},format=raw,if=none,id=disk,cache=none,aio={access}", program=GUEST_DISK,
            modules=("virtio_mmio", "virtio_blk"))
        flags = []
        wait_until(lambda: flags.extend(flags_of(child_of(process.pid), self.path("disk"))) or flags
                   or process.popen.poll() is not None, "QEMU opens the disk")
        self.assertEqual({word & os.O_DIRECT for word in flags}, {0}, process.log())
        self.expect_line(process, b"guest: %d bytes written" % (DISK_MIB * MIB))
        self.assertTrue(contents(self.path("disk")) == content.translate(bytes(255 - byte for byte in range(256))))
        self.expect_real_paging("shm")

    def test_a_disk_past_the_hosts_cache_by_aio(self):
        self.run_with_disk("native")

    def test_a_disk_past_the_hosts_cache_by_io_uring(self):
        self.run_with_disk("io_uring")

    def test_shared_memory_stays_local(self):
        self.run_with_local_memory(*self.backend("memfd", "share=on"))

    def test_private_memory_of_a_file_stays_local(self):
        self.run_with_local_memory(*self.backend("file", f"mem-path={self.path('memory')}"))

    def test_shared_memory_of_a_file_stays_local(self):
        self.run_with_local_memory(*self.backend("file", f"mem-path={self.path('memory')}", "share=on"))


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def flags_of(pid, path):
    """With which a process has opened a file; empty: it has not, or is gone."""
    flags = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}") == path:
                with open(f"/proc/{pid}/fdinfo/{fd}", encoding="utf-8") as file:
                    flags += [int(line.split()[1], 8) for line in file if line.startswith("flags:")]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return flags


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
