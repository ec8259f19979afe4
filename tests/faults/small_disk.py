"""A small file system of a campaign's own: a tmpfs in a mount namespace that ends with the process.

As root, a mount namespace is enough; anyone else makes a user namespace around it. Nothing of the machine is changed, and nothing
is left, however the campaign ends.

    python small_disk.py        says in one line why it cannot be had here, and exits with 1 then
"""

import ctypes
import os
import pathlib
import sys
import tempfile

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_NOSUID_NODEV = 0x2 | 0x4

LIBC = ctypes.CDLL(None, use_errno=True)


class NoSmallDisk(Exception):
    """Why there is none here."""


def call(what, result):
    if result != 0:
        raise NoSmallDisk(f"{what}: {os.strerror(ctypes.get_errno())}")


def enter():
    """Puts this process, which has one thread yet, and its children into a mount namespace of their own."""
    user, group = os.geteuid(), os.getegid()
    if user != 0 or LIBC.unshare(CLONE_NEWNS) != 0:
        call("no user namespace can be made", LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))
        try:
            pathlib.Path("/proc/self/setgroups").write_text("deny")
            pathlib.Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            pathlib.Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        except OSError as error:
            raise NoSmallDisk(f"the user namespace gets no users: {error}") from error
    call("mounts cannot be kept apart", LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))


def mount(folder, size):
    """Mounts `size` bytes of memory at a folder, which is made."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size},mode=755".encode()
    call(f"no tmpfs at {folder}", LIBC.mount(b"tidelog", str(folder).encode(), b"tmpfs", MS_NOSUID_NODEV, options))


def free(folder):
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def main():
    with tempfile.TemporaryDirectory() as folder:
        try:
            enter()
            mount(f"{folder}/disk", 1 << 20)
            pathlib.Path(f"{folder}/disk/file").write_bytes(bytes(1 << 16))
        except (NoSmallDisk, OSError) as error:
            print(error)
            sys.exit(1)
        finally:
            LIBC.umount2(f"{folder}/disk".encode(), 2)


if __name__ == "__main__":
    main()
