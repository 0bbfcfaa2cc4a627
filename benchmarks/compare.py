"""nbengine beside what people would use instead: same model, same prompts, same lengths, one table.

`python benchmarks/compare.py [--workloads W1 W2 …] [--engines …] [--dtype bfloat16] [--save]`

Each engine runs alone in a process of its own, the engines taking turns, so that a busy neighbour hurts them alike. A peer
that is not installed is left out and named. With --save the figures go to benchmarks/results/ with machine and date.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import workloads
from peers import PEERS

HERE = Path(__file__).parent
# A peer may live in a virtual environment of its own: NBENGINE_BENCH_PYTHON_<ENGINE>=its interpreter.
COLUMNS = ("output_tok_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms", "peak_rss_mb", "load_s")


def interpreter(engine: str) -> str:
    return os.environ.get(f"NBENGINE_BENCH_PYTHON_{engine.upper().replace('-', '_')}", sys.executable)


def run(engine: str, workload: str, args: argparse.Namespace, model: Path) -> dict[str, Any] | None:
    command = [interpreter(engine), str(HERE / "engine.py"), "--engine", engine, "--workload", workload, "--json"]
    command += ["--dtype", args.dtype, "--reps", str(args.reps), "--model", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        print(f"{engine} on {workload}: left out ({reason})", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout.splitlines()[-1]))


def read_bandwidth_gb_s() -> float:
    """What this machine reads from memory now, by summing 512 MB of float32: the limit of decoding one request."""
    import torch

    data = torch.ones(128 << 20)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        seconds.append(time.perf_counter() - start)
    return data.numel() * 4 / statistics.median(seconds) / 1e9


def gemm_gflop_s(dtype: str) -> float:
    """What this machine multiplies: the limit of prefill."""
    import torch

    a = torch.randn(512, 1536, dtype=getattr(torch, dtype))
    b = torch.randn(1536, 1536, dtype=getattr(torch, dtype))
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return 2 * 512 * 1536 * 1536 / statistics.median(seconds) / 1e9


def limit_share(row: dict[str, Any], weights_bytes: int, parameters: int, bandwidth: float, gemm: float) -> float:
    """The time that the physical limit asks for, over the time taken: 1 would be perfect.

    Every token in and out costs 2 operations a parameter; every decode step reads the weights once.
    """
    work = workloads.get(row["workload"])
    tokens = sum(len(p) + n for p, n in work)
    steps = max(n for _, n in work)
    seconds = max(2 * parameters * tokens / gemm / 1e9, steps * weights_bytes / bandwidth / 1e9)
    return seconds / (sum(n for _, n in work) / float(row["output_tok_s"]))


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'':4}{'engine':24}" + "".join(f"{c:>14}" for c in COLUMNS) + f"{'vs nbengine':>13}{'of limit':>10}")
    for row in rows:
        ours = next((r for r in rows if r["workload"] == row["workload"] and r["engine"] == "nbengine"), None)
        ratio = f"{row['output_tok_s'] / ours['output_tok_s']:.2f}x" if ours else ""
        cells = "".join(f"{row[c]:14.1f}" if c in row else f"{'-':>14}" for c in COLUMNS)
        print(f"{row['workload']:4}{row['engine']:24}{cells}{ratio:>13}{row['of_limit']:>10.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=workloads.NAMES, default=["W1", "W2", "W3", "W4"])
    parser.add_argument("--engines", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write the figures to benchmarks/results/")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    from engine import small_model
    from tqdm.auto import tqdm

    model = small_model()
    element = 4 if args.dtype == "float32" else 2
    parameters = (model / "model.safetensors").stat().st_size // 4  # the file holds float32
    bandwidth, gemm = read_bandwidth_gb_s(), gemm_gflop_s(args.dtype)
    rows = []
    for workload, engine in tqdm([(w, e) for w in args.workloads for e in args.engines], unit="run"):
        if row := run(engine, workload, args, model):
            rows.append(row | {"of_limit": limit_share(row, parameters * element, parameters, bandwidth, gemm)})
    print_table(rows)
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "memory_read_gb_s": round(bandwidth, 1),
        "gemm_gflop_s": round(gemm),
        "rows": rows,
    }
    if args.save:
        (HERE / "results").mkdir(exist_ok=True)
        target = HERE / "results" / f"engines-{args.dtype}-{report['date']}.json"
        target.write_text(json.dumps(report, indent=1) + "\n")
        print(f"Wrote {target}")
    if args.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
