"""What processes that run for long, and those that have ended, leave behind."""
import errno
import glob
import os
import re
import socket
from collections import Counter

# What farpage has outside of the folders that its options name. Folders of tests are their own.
PATTERNS = ("/dev/shm/*farpage*", "/run/farpage/*", "/tmp/farpage-*")
FOREIGN = re.compile(r"^/tmp/farpage-e2e-")  # of tests beside this one
OF_A_PROCESS = re.compile(r"(?:-run-|/local-)(\d+)-")


class Held:
    """Descriptors by kind, and threads by name, of a process."""

    def __init__(self, pid):
        self.descriptors, self.threads = Counter(), Counter()
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                self.descriptors[_kind(os.readlink(f"/proc/{pid}/fd/{name}"))] += 1
            except OSError:
                pass  # closed meanwhile
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as file:
                    self.threads[file.read().strip()] += 1
            except OSError:
                pass  # ended meanwhile

    def __str__(self):
        return f"{self.descriptors.total()} descriptors and {self.threads.total()} threads"

    def more_than(self, before, descriptors, threads):
        """Text: what of this is more than `before`, by more than so many in all; empty: nothing is."""
        found = []
        for what, now, then, bearable in (("descriptors", self.descriptors, before.descriptors, descriptors),
                                          ("threads", self.threads, before.threads, threads)):
            if now.total() > then.total() + bearable:
                found.append(f"{now.total()} {what}, {then.total()} before; new: {dict(now - then)}")
        return "; ".join(found)


def _kind(link):
    """socket:[4711] and memfd names without what is different for each."""
    return re.sub(r"\d+", "N", link)


def files():
    """Those paths that nobody has who lives."""
    paths = (path for pattern in PATTERNS for path in glob.glob(pattern))
    return {path for path in paths if not FOREIGN.search(path) and not _in_use(path)}


def _is_of(path, owners):
    owner = OF_A_PROCESS.search(path)
    return owner is None or int(owner[1]) in owners


def _in_use(path):
    """The process in its name lives, or somebody listens there."""
    owner = OF_A_PROCESS.search(path)
    if owner:
        return os.path.exists(f"/proc/{owner[1]}")
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(path) in (0, errno.EPROTOTYPE)  # or it has another type: shm has packets


def free_huge_pages():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("HugePages_Free:")), 0)


def processes_with(marker):
    """Those that were started with this word in their environment, `NAME=VALUE`: pid and command line."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as environment, open(f"/proc/{name}/cmdline", "rb") as command:
                if marker.encode() in environment.read().split(b"\0"):
                    words = command.read().replace(b"\0", b" ").decode(errors="replace")
                    if words:  # else it has ended, and waits for its parent
                        found.append((int(name), words[:200]))
        except OSError:
            pass  # it has ended, or is another user's
    return found


class Before:
    """The state of this machine at a moment, and what has been added since."""

    def __init__(self):
        self._files = files()
        self._huge_pages = free_huge_pages()

    def findings(self, marker, owners):
        """`marker` as for processes_with(). Of files with the number of a process in their name, only those of
        `owners` count: others are of tests beside this one."""
        found = [f"left behind: {path}" for path in sorted(files() - self._files) if _is_of(path, owners)]
        found += [f"still runs: {pid} {command}" for pid, command in processes_with(marker)]
        missing = self._huge_pages - free_huge_pages()
        return found + ([f"{missing} huge pages are not free again"] if missing > 0 else [])
