"""The far memories that are compared: farpage over each transport, and kernel swap on each device.

Each is running() while it is measured, and confine() says how a program is started in it.
"""
import contextlib
import os
import pathlib

import swap_devices

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"
# What a program needs beside the memory that is measured: libraries, page tables, its own tables.
LIMIT_ALLOWANCE = 8 << 20


class Farpage:
    def __init__(self, transport):
        self.name, self.transport = f"farpage {transport}", transport

    @contextlib.contextmanager
    def running(self, size):
        self.lend = 2 * size
        yield

    @contextlib.contextmanager
    def confine(self, local):
        """Words before the command, and keywords for Popen."""
        yield ([BUILD / "farpage", "run", "--local", str(local), "--lend", str(self.lend),
                "--transport", self.transport, "--"], {"env": dict(os.environ, FARPAGE_LOG_LEVEL="error")})


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


def systems_here():
    if "LAB_VM" not in os.environ:
        return [Farpage("shm"), Farpage("tcp"), KernelSwap("zram", swap_devices.zram),
                KernelSwap("loop on tmpfs", swap_devices.loop)]
    address = os.environ["LAB_IP"]
    return [Farpage("verbs"), KernelSwap("NVMe-oF/RDMA", swap_devices.nvme_rdma, address),
            KernelSwap("NBD/TCP", swap_devices.nbd, address), KernelSwap("zram", swap_devices.zram)]
