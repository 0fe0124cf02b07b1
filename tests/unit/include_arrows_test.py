#!/usr/bin/env python3
"""The include arrows between folders: downwards only, and never between the two seams."""
import pathlib
import re
import sys

BELOW = {
    "base": set(),
    "uffd": {"base"},
    "rdma": {"base"},
    "http": {"base"},
    "coordinator": {"http", "rdma", "base"},
    "node": {"coordinator", "http", "rdma", "base"},
    "pager": {"coordinator", "rdma", "uffd", "base"},
    "shim": {"uffd", "base"},
    "inject": {"shim", "uffd", "base"},
    "serve": {"pager", "coordinator", "rdma", "uffd", "base"},
    "image": {"pager", "coordinator", "rdma", "base"},
    "snapshot": {"image", "pager", "uffd", "coordinator", "http", "rdma", "base"},
    "criu": {"image", "pager", "coordinator", "rdma", "base"},
    "share": {"serve", "pager", "uffd", "coordinator", "http", "rdma", "base"},
    "library": {"serve", "shim", "pager", "node", "coordinator", "http", "rdma", "uffd", "base"},
    "bench": {"library", "pager", "coordinator", "http", "rdma", "uffd", "base"},
    "cli": {"bench", "inject", "share", "snapshot", "criu", "image", "serve", "pager", "node", "coordinator", "http", "rdma", "uffd", "base"},
}
# Headers that the pager may include from lower folders: the two seams and the coordinator's client.
PAGER_MAY_SEE = {
    "uffd/address_space.h",
    "rdma/transport.h",
    "rdma/endpoint.h",
    "rdma/session.h",
    "rdma/slab_file.h",
    "coordinator/api.h",
    "coordinator/api_json.h",
    "coordinator/client.h",
}
# Headers of the shim that the injected agent is made of.
INJECT_MAY_SEE = {"shim/ring_consumer.h", "shim/syscalls.h"}
# The subfolders of pager/, and those that each may include.
ROOMS_BELOW = {
    "pages": set(),
    "compress": set(),
    "links": {"pages"},
    "evict": {"pages", "compress", "links"},
    "fault": {"pages", "compress", "links", "evict"},
    "fork": {"pages", "links", "fault"},
}
# What joins the rooms is no part of the lowest ones.
ABOVE_ALL_ROOMS = {"engine.h", "engine_core.h", "pager.h", "target.h", "target_pager.h"}
# Foreign headers, and the only folders that may include them.
PRIVATE = {
    r"linux/userfaultfd\.h": ("uffd/",),
    r"infiniband/.*": ("rdma/verbs/",),
    r"liburing.*": ("rdma/tcp/", "rdma/file/"),
    r"httplib\.h": ("http/",),
    r"boost/.*": ("http/", "serve/", "bench/load_lane.", "cli/attach.cc", "cli/run.cc", "cli/pager.cc", "cli/program_pager.cc",
                  "cli/attached_tree.", "cli/tended_attachment."),
}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)


def errors_of(path, text):
    folder = path.parts[0]
    for kind, header in INCLUDE.findall(text):
        target = header.split("/")[0]
        if kind == '"' and target in BELOW and target != folder:
            if target not in BELOW[folder]:
                yield f"{path}: {folder}/ must not include {header}"
            elif folder == "shim":
                if target != "base" and header not in ("uffd/handover.h", "uffd/kernel_abi.h"):
                    yield f"{path}: the shim may include only uffd/handover.h and kernel_abi.h, not {header}"
            elif folder == "inject" and target == "shim" and header not in INJECT_MAY_SEE:
                yield f"{path}: of the shim, the injected agent has {' and '.join(sorted(INJECT_MAY_SEE))}, not {header}"
            elif folder == "pager" and target != "base" and header not in PAGER_MAY_SEE:
                yield f"{path}: the pager acts only through the seams, not {header}"
        if folder == "pager" and kind == '"' and len(path.parts) > 2 and header.startswith("pager/"):
            room, other = path.parts[1], header.split("/")[1]
            if other in ROOMS_BELOW and other != room and other not in ROOMS_BELOW[room]:
                yield f"{path}: pager/{room}/ must not include {header}"
            if other in ABOVE_ALL_ROOMS and not ROOMS_BELOW[room]:
                yield f"{path}: pager/{room}/ must not include {header}"
        for pattern, owners in PRIVATE.items():
            if re.fullmatch(pattern, header) and not str(path).startswith(owners):
                yield f"{path}: {header} belongs to {', '.join(owners)} alone"
            if re.fullmatch(pattern, header) and header.startswith("httplib") and path.suffix == ".h":
                yield f"{path}: httplib stays in .cc files"


def main(root):
    found, files = [], 0
    for folder in BELOW:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                files += 1
                found += errors_of(path.relative_to(root), path.read_text())
    for line in found:
        print(line)
    if files == 0:
        print("no source file was read")
    print(f"{files} files, {len(found)} wrong arrows")
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
