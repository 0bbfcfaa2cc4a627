"""nbengine beside what people would use instead: same model, same prompts, same lengths, one table.

`python benchmarks/compare.py [--workloads W1 W2 …] [--engines …] [--dtype bfloat16] [--quantization int8 …] [--save]`

Each engine runs alone in a process of its own, the engines taking turns, so that a busy neighbour hurts them alike. A peer
that is not installed is left out and named. Below the table: nbengine over the best peer that ran, beside what it should be
(TARGETS). With --save the figures go to benchmarks/results/ with machine and date.
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
from peers import PEERS, common_prefix

HERE = Path(__file__).parent
# A peer may live in a virtual environment of its own: NBENGINE_BENCH_PYTHON_<ENGINE>=its interpreter.
TARGETS = {"W1": 1.0, "W2": 1.2, "W3": 1.4, "W4": 1.35}  # output tokens a second over the best peer's
QUANTIZED_TARGETS = {"W1": 1.1, "W2": 2.0}  # the better of int8 and int4, over llama.cpp's q4_0
QUANTIZED = ("nbengine", "llama-cpp")  # engines that have int8 and int4
WEIGHT_BYTES = {"int8": 1.0, "int4": 0.625}  # of a matrix's element, scales included
COLUMNS = ("output_tok_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms", "peak_rss_mb", "load_s")


def interpreter(engine: str) -> str:
    return os.environ.get(f"NBENGINE_BENCH_PYTHON_{engine.upper().replace('-', '_')}", sys.executable)


def run(
    engine: str, workload: str, quantization: str | None, args: argparse.Namespace, model: Path
) -> dict[str, Any] | None:
    command = [interpreter(engine), str(HERE / "engine.py"), "--engine", engine, "--workload", workload, "--json"]
    command += ["--dtype", args.dtype, "--reps", str(args.reps), "--model", str(model)]
    command += ["--quantization", quantization] if quantization else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        print(f"{engine} on {workload}: left out ({reason})", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout.splitlines()[-1]))


def processor() -> str:
    """The processor's name and the widest vectors that it offers."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in fields.get("flags", "").split()]
    return f"{fields.get('model name', platform.machine())} ({', '.join(flags)})"


def stamp() -> dict[str, Any]:
    """What every file of results begins with."""
    return {"date": datetime.date.today().isoformat(), "machine": {"processor": processor(), "cores": os.cpu_count()}}


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


def limit_share(row: dict[str, Any], weight_bytes: float, body: int, head: int, bandwidth: float, gemm: float) -> float:
    """The time that the physical limit asks for, over the time taken: 1 would be perfect.

    body, head: parameters of the layers, and of the matrix to the vocabulary. Every token passes the layers with 2
    operations a parameter (a prefix that all prompts share once), every new one the head too; every decode step reads all
    weights once.
    """
    work = workloads.get(row["workload"])
    shared = len(common_prefix([p for p, _ in work])) if len(work) > 1 else 0
    tokens, new = sum(len(p) + n for p, n in work) - (len(work) - 1) * shared, sum(n for _, n in work)
    steps = max(n for _, n in work)
    operations = 2 * (body * tokens + head * new)
    seconds = max(operations / gemm / 1e9, steps * weight_bytes * (body + head) / bandwidth / 1e9)
    return seconds / (new / float(row["output_tok_s"]))


def sizes(model: Path) -> tuple[int, int]:
    """Parameters of the layers and of the head, from a model directory whose file holds float32."""
    config = json.loads((model / "config.json").read_text())
    head = config["vocab_size"] * config["hidden_size"]
    copies = 1 if config["tie_word_embeddings"] else 2
    return (model / "model.safetensors").stat().st_size // 4 - copies * head, head


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'':4}{'engine':24}" + "".join(f"{c:>14}" for c in COLUMNS) + f"{'of limit':>10}")
    for row in rows:
        cells = "".join(f"{row[c]:14.1f}" if c in row else f"{'-':>14}" for c in COLUMNS)
        print(f"{row['workload']:4}{label(row):24}{cells}{row['of_limit']:>10.0%}")


def label(row: dict[str, Any]) -> str:
    return f"{row['engine']} {row['quantization'] or ''}".strip()


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each workload and quantization that both sides ran: nbengine over the best peer (of codes: over int4's), and the
    target."""
    found = []
    for ours in (row for row in rows if row["engine"] == "nbengine"):
        form = "int4" if ours["quantization"] else None
        peers = [r for r in rows if r["engine"] != "nbengine" and r["workload"] == ours["workload"]]
        peers = [r for r in peers if r["quantization"] == form]
        if peers:
            best = max(peers, key=lambda r: float(r["output_tok_s"]))
            ratio = ours["output_tok_s"] / best["output_tok_s"]
            target = (QUANTIZED_TARGETS if form else TARGETS).get(ours["workload"])
            same = {key: ours[key] for key in ("workload", "quantization")}
            found.append(same | {"best": label(best), "ratio": round(ratio, 3), "target": target})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=workloads.NAMES, default=["W1", "W2", "W3", "W4"])
    parser.add_argument("--engines", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--quantization", nargs="*", choices=["int8", "int4"], default=[], help="these forms too")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write the figures to benchmarks/results/")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    from engine import small_model
    from tqdm.auto import tqdm

    model = small_model()
    element = 4 if args.dtype == "float32" else 2
    body, head = sizes(model)
    # A processor without bfloat16 of its own multiplies it as float32.
    bandwidth, gemm = read_bandwidth_gb_s(), max(gemm_gflop_s(dtype) for dtype in {args.dtype, "float32"})
    runs: list[tuple[str, str, str | None]] = [(w, e, None) for w in args.workloads for e in args.engines]
    runs += [(w, e, q) for w in args.workloads for q in args.quantization for e in args.engines if e in QUANTIZED]
    rows = []
    for workload, engine, quantization in tqdm(runs, unit="run"):
        if row := run(engine, workload, quantization, args, model):
            weight = WEIGHT_BYTES.get(quantization, element)
            rows.append(row | {"of_limit": limit_share(row, weight, body, head, bandwidth, gemm)})
    print_table(rows)
    for found in ratios(rows):
        target = f", target {found['target']}x" if found["target"] else ""
        form = f" {found['quantization']}" if found["quantization"] else ""
        print(f"{found['workload']}{form}: {found['ratio']:.2f}x {found['best']}{target}")
    report = stamp() | {
        "memory_read_gb_s": round(bandwidth, 1),
        "gemm_gflop_s": round(gemm),
        "ratios": ratios(rows),
        "rows": rows,
    }
    if args.save:
        (HERE / "results").mkdir(exist_ok=True)
        widest = processor().rstrip(")").split()[-1]
        name = f"engines-{args.dtype}-{'-'.join(args.workloads)}-{widest}-{report['date']}.json"  # one run, one file
        file = HERE / "results" / name
        file.write_text(json.dumps(report, indent=1) + "\n")
        print(f"Wrote {file}")
    if args.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
