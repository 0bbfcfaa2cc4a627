"""How much memory is free, and how much a piece of work takes at its peak."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import torch
from nbengine_kernels.pages import give_back_heap

_STATUS = Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")


class MemoryProbe:
    """Free bytes of a device when made, and the peak of what is allocated within the `with` block.

    On a CPU the free bytes are what the system (and a container's limit) would still give; where the system does not tell a
    process's peak, that is 0. What the allocator keeps of earlier work, and then of this one, goes back to the system.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak_bytes = 0
        self.free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_system_bytes()

    def __enter__(self) -> MemoryProbe:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            give_back_heap()
            _reset_peak()
            self._before = _status_bytes("VmRSS")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        cuda = self._device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._device) if cuda else _status_bytes("VmHWM")
        self.peak_bytes = max(0, peak - self._before)
        if not cuda:
            give_back_heap()


def free_system_bytes() -> int:
    """Bytes that this process could still take without pushing others out, as far as the system says."""
    free = _available_ram()
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _cgroup_cache()))
    return free


def _available_ram() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # no Linux: half of the machine is a cautious guess
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _cgroup_cache() -> int:
    """Bytes of file cache that the container's limit counts, but the kernel would give up."""
    try:
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" means no limit
        return None


def _status_bytes(name: str) -> int:
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _reset_peak() -> None:
    """Make VmHWM start again from the present; where that is not allowed, the old peak stands and the result is cautious."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return
