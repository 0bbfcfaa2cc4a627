"""One engine, one workload: how fast. `python benchmarks/engine.py --workload W2 --dtype bfloat16 --json`

Prints a line a repeat and, with --json, one JSON object on the last line: medians over the repeats. Times are counted from
the moment when all requests are handed over.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import workloads
from peers import PEERS, Peer

# Not from here on: transformers looks for a package called kernels, and would find the script beside this one.
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]


def machine_busy_s() -> float:
    """CPU seconds that the whole machine has spent, to see how much others took during a run."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")


def peak_rss_mb() -> float:
    """Of this process alone: on Linux ru_maxrss begins with that of the process which started it."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def percentile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def measure(peer: Peer, work: workloads.Workload) -> dict[str, Any]:
    """One repeat."""
    gc.collect()
    cpu, busy, start = sum(os.times()[:2]), machine_busy_s(), time.perf_counter()
    tokens, times = peer.run(work)
    wall = time.perf_counter() - start
    others = max(0.0, machine_busy_s() - busy - (sum(os.times()[:2]) - cpu)) / wall
    assert [len(t) for t in tokens] == [n for _, n in work], "an engine gave another number of tokens than asked"
    result: dict[str, Any] = {
        "wall_s": wall,
        "output_tok_s": sum(n for _, n in work) / wall,
        "sha": workloads.checksum(tokens),
        "other_cores": round(others, 2),
    }
    if times:
        gaps = [b - a for t in times for a, b in pairwise(t)]
        result |= {
            "ttft_p50_ms": 1e3 * statistics.median(t[0] - start for t in times),
            "itl_p50_ms": 1e3 * percentile(gaps, 0.5),
            "itl_p99_ms": 1e3 * percentile(gaps, 0.99),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=PEERS, default="nbengine")
    parser.add_argument("--workload", choices=workloads.NAMES, default="W2")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--model", help="a model directory (default: the small model)")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    model = Path(args.model) if args.model else small_model()
    work = workloads.get(args.workload)
    peer = PEERS[args.engine](model, args.dtype, args.threads, work, args.quantization)
    peer.prepare()
    start = time.perf_counter()
    peer.load()
    load_s = time.perf_counter() - start
    peer.run(workloads.warmup())
    repeats = []
    for _ in range(args.reps):
        peer.forget()
        repeats.append(measure(peer, work))
        print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in repeats[-1].items()))
    summary = {k: statistics.median(r[k] for r in repeats) for k, v in repeats[0].items() if isinstance(v, float)}
    summary |= {k: getattr(args, k) for k in ("engine", "workload", "dtype", "quantization", "threads", "reps")}
    summary |= {"sha": repeats[-1]["sha"], "load_s": load_s, "peak_rss_mb": peak_rss_mb()}
    if args.json:
        print(json.dumps(summary))


def small_model() -> Path:
    from nbengine.models.catalog import pull

    return Path(pull("smollm2-135m"))


if __name__ == "__main__":
    main()
