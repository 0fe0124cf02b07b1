#!/usr/bin/env python3
"""unpack_vmlinux.py BZIMAGE VMLINUX: takes the ELF kernel out of a bzImage.

QEMU starts an ELF kernel directly (PVH); under emulation that saves the seconds which the image's
own unpacking would take. Field offsets: Linux, Documentation/arch/x86/boot.rst.
"""
import gzip
import lzma
import struct
import subprocess
import sys

SETUP_SECTS = 0x1F1
PAYLOAD_OFFSET = 0x248
PAYLOAD_LENGTH = 0x24C


def payload(image):
    setup_sectors = image[SETUP_SECTS] or 4
    (offset,) = struct.unpack_from("<I", image, PAYLOAD_OFFSET)
    (length,) = struct.unpack_from("<I", image, PAYLOAD_LENGTH)
    start = (setup_sectors + 1) * 512 + offset
    return image[start:start + length]


def unpack(packed):
    """The kernel build appends the unpacked size, which is not part of the compressed stream."""
    if packed.startswith(b"\xfd7zXZ"):
        return lzma.LZMADecompressor().decompress(packed)
    if packed.startswith(b"\x1f\x8b"):
        return gzip.decompress(packed[:-4])
    if packed.startswith(b"\x28\xb5\x2f\xfd"):
        run = subprocess.run(["zstd", "-dcq"], input=packed[:-4], capture_output=True, check=True)
        return run.stdout
    sys.exit(f"unknown compression, magic {packed[:4].hex()}")


def main():
    source, target = sys.argv[1:]
    with open(source, "rb") as file:
        kernel = unpack(payload(file.read()))
    if not kernel.startswith(b"\x7fELF"):
        sys.exit("the payload is no ELF file")
    with open(target, "wb") as file:
        file.write(kernel)


main()
