"""A memory control group of Linux for one program: what it counts, and a limit.

It counts anonymous memory, page tables and kernel stacks of the processes in it, and pages of files that were not
in the page cache before. Both versions of control groups; needs root.
"""
import contextlib
import os
import pathlib
import signal

from swap_devices import wait_for, write


class MemoryGroup:
    def __init__(self, folder):
        self.folder = folder
        self.is_v2 = (folder / "memory.max").exists()

    def limit(self, size):
        write(self.folder / ("memory.max" if self.is_v2 else "memory.limit_in_bytes"), str(size))

    def peak_bytes(self):
        """Of all processes together, until now."""
        return int((self.folder / ("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes")).read_text())

    def kills(self):
        """Processes that the kernel killed because the group had no more memory."""
        file = self.folder / ("memory.events" if self.is_v2 else "memory.oom_control")
        return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])

    def kill(self):
        """Ends all processes in it."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def command(self, words):
        """The words of a command that enters the group before it becomes this one."""
        return ["/bin/sh", "-c", 'echo 0 >"$0" && exec "$@"', str(self.folder / "cgroup.procs"), *map(str, words)]


@contextlib.contextmanager
def memory_group():
    root = pathlib.Path("/sys/fs/cgroup")
    controllers = root / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text():
        write(root / "cgroup.subtree_control", "+memory")
    else:
        root = root / "memory"
    folder = root / f"farpage-compare-{os.getpid()}"
    folder.mkdir()
    try:
        yield MemoryGroup(folder)
    finally:
        def removed():
            with contextlib.suppress(OSError):  # busy until the last process has been removed
                folder.rmdir()
            return not folder.exists()
        wait_for("the end of the control group", removed)
