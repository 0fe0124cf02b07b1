"""Kernel swap on one device at a time: what farpage is compared with.

Each device is a context manager that gives the block device's path; whatever it made is gone at the end.
All need root. The memory behind every device is this machine's, as farpage's embedded node's is.
"""
import contextlib
import glob
import os
import pathlib
import signal
import subprocess
import tempfile
import time

NQN = "nqn.2014-08.org.farpage:compare"
NVME_PORT, NBD_PORT = 4420, 10809
PRIORITY = "32767"  # higher than any other swap of this machine


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout.strip()


def write(path, text):
    pathlib.Path(path).write_text(text)


def wait_for(what, condition, seconds=10):
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not come within {seconds} s")
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def zram(size):
    subprocess.run(["modprobe", "zram"], capture_output=True)  # it may be built into the kernel
    number = pathlib.Path("/sys/class/zram-control/hot_add").read_text().strip()
    try:
        write(f"/sys/block/zram{number}/disksize", str(size))
        yield f"/dev/zram{number}"
    finally:
        write(f"/sys/block/zram{number}/reset", "1")
        write("/sys/class/zram-control/hot_remove", number)


@contextlib.contextmanager
def loop(size):
    """A loop device on a file in ramfs: tmpfs would be swapped out to itself, and hang. It
    is filled here, so that its memory does not count against the limit of the program that swaps."""
    with tempfile.TemporaryDirectory(prefix="farpage-swap-") as folder:
        command("mount", "-t", "ramfs", "ramfs", folder)
        try:
            path = pathlib.Path(folder) / "swap"
            with open(path, "wb") as file:
                for _ in range(0, size, 1 << 20):
                    file.write(bytes(1 << 20))
            device = command("losetup", "--find", "--show", path)
            try:
                yield device
            finally:
                command("losetup", "--detach", device)
        finally:
            command("umount", folder)


@contextlib.contextmanager
def ram_disk(size):
    command("modprobe", "brd", "rd_nr=1", f"rd_size={size // 1024}")
    try:
        yield "/dev/ram0"
    finally:
        command("modprobe", "--remove", "brd")


@contextlib.contextmanager
def nvme_rdma(size, address):
    """NVMe over RDMA, from this machine to itself: nvme_rdma and nvmet_rdma on the same device."""
    command("modprobe", "-a", "nvme-rdma", "nvmet", "nvmet-rdma")
    config = pathlib.Path("/sys/kernel/config")
    if not (config / "nvmet").exists():
        command("mount", "-t", "configfs", "none", config)
    subsystem, port = config / "nvmet/subsystems" / NQN, config / "nvmet/ports/1"
    with ram_disk(size) as disk:
        before = set(glob.glob("/dev/nvme*n1"))
        try:
            subsystem.mkdir()
            write(subsystem / "attr_allow_any_host", "1")
            (subsystem / "namespaces/1").mkdir()
            write(subsystem / "namespaces/1/device_path", disk)
            write(subsystem / "namespaces/1/enable", "1")
            port.mkdir()
            for name, value in {"addr_trtype": "rdma", "addr_adrfam": "ipv4", "addr_traddr": address,
                                "addr_trsvcid": str(NVME_PORT)}.items():
                write(port / name, value)
            (port / "subsystems" / NQN).symlink_to(subsystem)
            # The connection lasts as long as the controller, not as long as this descriptor.
            with open("/dev/nvme-fabrics", "r+b", buffering=0) as fabrics:
                fabrics.write(f"transport=rdma,traddr={address},trsvcid={NVME_PORT},nqn={NQN}".encode())
            device = wait_for("the NVMe device", lambda: set(glob.glob("/dev/nvme*n1")) - before)
            yield device.pop()
        finally:
            for controller in glob.glob("/sys/class/nvme/nvme*/delete_controller"):
                write(controller, "1")
            if (port / "subsystems" / NQN).is_symlink():
                (port / "subsystems" / NQN).unlink()
            for folder in (port, subsystem / "namespaces/1", subsystem):
                if folder.exists():
                    folder.rmdir()


@contextlib.contextmanager
def nbd(size, address):
    """A network block device over TCP, from this machine to itself."""
    command("modprobe", "nbd")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="farpage-nbd-") as folder:
        disk = pathlib.Path(folder) / "disk"
        with open(disk, "wb") as file:
            file.truncate(size)
        config = pathlib.Path(folder) / "config"
        config.write_text(f"[generic]\nlistenaddr = {address}\nport = {NBD_PORT}\n"
                          f"[swap]\nexportname = {disk}\n")
        server = subprocess.Popen(["nbd-server", "-d", "-C", config], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            def connected():
                return subprocess.run(["nbd-client", "-N", "swap", address, str(NBD_PORT), "/dev/nbd0"],
                                      capture_output=True).returncode == 0
            wait_for("nbd-server", connected)
            try:
                yield "/dev/nbd0"
            finally:
                command("nbd-client", "-d", "/dev/nbd0")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


@contextlib.contextmanager
def swap_on(device, page_cluster=0):
    """2 ** page_cluster pages are read at a time; 0: no read-ahead."""
    for other in pathlib.Path("/proc/swaps").read_text().splitlines()[1:]:
        if other.split()[-1] == PRIORITY:
            raise RuntimeError(f"{other.split()[0]} is swap already: another comparison runs on this machine")
    command("mkswap", device)
    cluster = pathlib.Path("/proc/sys/vm/page-cluster")
    before = cluster.read_text()
    cluster.write_text(str(page_cluster))
    command("swapon", "--priority", PRIORITY, device)
    try:
        yield
    finally:
        command("swapoff", device)
        cluster.write_text(before)


def pages_moved():
    """Pages that this machine has read from swap and written to it, since its start."""
    counts = dict(line.split() for line in pathlib.Path("/proc/vmstat").read_text().splitlines())
    return int(counts["pswpin"]), int(counts["pswpout"])


def compressed_bytes(device):
    """The most memory that a zram device took for its pages since the last call; 0 for another device."""
    folder = pathlib.Path("/sys/block") / pathlib.Path(device).name
    if not (folder / "mm_stat").exists():
        return 0
    most = int((folder / "mm_stat").read_text().split()[4])
    write(folder / "mem_used_max", "0")
    return most
