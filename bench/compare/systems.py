"""The far memories that are compared: farpage over each transport, and kernel swap on each device.

Each is running() while it is measured, and confine() says how a program is started in it.
"""
import contextlib
import json
import os
import pathlib
import subprocess
import sys

import swap_devices

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"
# Memory of a program beside the measured part: libraries, page tables, its own tables.
LIMIT_ALLOWANCE = 8 << 20


class Farpage:
    def __init__(self, transport):
        self.name, self.transport = f"farpage {transport}", transport

    @contextlib.contextmanager
    def running(self, size):
        # Scattered memory of a program takes one slab (64 MiB) per place.
        self.lend = 2 * size + (512 << 20)
        yield

    @contextlib.contextmanager
    def confine(self, local):
        """Words before the command, and keywords for Popen."""
        # Idle CPUs poll in the lab, so the fault workers may poll, too.
        polling = ["--poll-mode", "busy"] if "LAB_VM" in os.environ else []
        yield ([BUILD / "farpage", "run", "--local", str(local), "--lend", str(self.lend),
                "--transport", self.transport, *polling, "--"], {"env": dict(os.environ, FARPAGE_LOG_LEVEL="error")})


class FarpageLibrary:
    """random_touch in a region of the library, whose faults the touching thread resolves itself."""

    def __init__(self, transport):
        self.name, self.transport = f"library, {transport}", transport

    @contextlib.contextmanager
    def running(self, size):
        with service("coordinator", "--listen", "127.0.0.1:0") as ready:
            self.coordinator = ready["url"]
            with service("node", "--coordinator", self.coordinator, "--lend", str(2 * size), "--transports",
                         self.transport, "--leave-timeout", "1s"):
                yield

    @contextlib.contextmanager
    def confine(self, local):
        region = f"{self.coordinator} {self.transport} {local}"
        yield [], {"env": dict(os.environ, FARPAGE_LOG_LEVEL="error", RANDOM_TOUCH_REGION=region)}


class KernelSwap:
    def __init__(self, name, device, *words):
        self.name, self.device, self.words = f"swap {name}", device, words

    @contextlib.contextmanager
    def running(self, size):
        with self.device(2 * size, *self.words) as device, swap_devices.swap_on(device):
            yield

    @contextlib.contextmanager
    def confine(self, local):
        with swap_devices.memory_limit(local + LIMIT_ALLOWANCE) as enter:
            yield [], {"preexec_fn": enter}


@contextlib.contextmanager
def service(*words):
    """A coordinator or a node, with the line that it prints when it is ready."""
    process = subprocess.Popen([BUILD / "farpage", *words, "--output", "json"], stdout=subprocess.PIPE,
                               env=dict(os.environ, FARPAGE_LOG_LEVEL="error"))
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"farpage {words[0]} did not start: status {process.wait()}")
        yield json.loads(line)
    finally:
        process.terminate()
        process.wait()


class Killed(Exception):
    """True if SIGKILL ended it (this script sends none)."""


def unless_killed(system, run, tries=3):
    """What run() returns. Under kernel swap it is retried, and None after the last attempt: reclaim sometimes fails
    although there is swap. Anywhere else a killed program is an error."""
    for _ in range(tries):
        try:
            return run()
        except Killed:
            if not isinstance(system, KernelSwap):
                raise
            print(f"{system.name}: killed, out of memory", file=sys.stderr)
    return None


def chosen(systems, names):
    """Those whose name contains one of `names`; all if `names` is empty."""
    found = [system for system in systems if any(name in system.name for name in names or [""])]
    if not found:
        sys.exit(f"no system is called {' or '.join(names)} ({', '.join(system.name for system in systems)})")
    return found


def libraries_here():
    """For programs that use the library: random_touch."""
    return [] if "LAB_VM" in os.environ else [FarpageLibrary("shm"), FarpageLibrary("tcp")]


def systems_here():
    """For any program."""
    if "LAB_VM" not in os.environ:
        return [Farpage("shm"), Farpage("tcp"), KernelSwap("zram", swap_devices.zram),
                KernelSwap("loop on ramfs", swap_devices.loop)]
    address = os.environ["LAB_IP"]
    return [Farpage("verbs"), KernelSwap("NVMe-oF/RDMA", swap_devices.nvme_rdma, address),
            KernelSwap("NBD/TCP", swap_devices.nbd, address), KernelSwap("zram", swap_devices.zram)]
