"""What weight-only quantisation costs and brings: accuracy beside speed, in one run.

    python benchmarks/quantization.py [--model smollm2-135m] [--dtype bfloat16] [--json]

For the plain weights, int8 and int4 (the head is int8 in both): the perplexity of a fixed text; the share of that text's
positions whose likeliest next token is the one that the plain weights choose (greedy agreement, on the same context each
time); output tokens a second of W1 and W2. The last line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
from pathlib import Path
from typing import Any

import workloads
from compare import stamp
from engine import measure, small_model
from peers import NBEngine

from nbengine import LLM, SamplingParams

TEXT = Path(__file__).with_name("text.txt")


def reading(llm: LLM, text: str) -> tuple[float, list[int]]:
    """Perplexity of the text, and the likeliest token after each of its tokens."""
    output = llm.generate([text], SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1), use_tqdm=False)[0]
    assert output.prompt_logprobs is not None and output.prompt_token_ids is not None
    losses, choices = [], []
    for token, entry in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
        assert entry is not None
        losses.append(-entry[token].logprob)
        choices.append(max(entry, key=lambda t: entry[t].logprob))
    return math.exp(sum(losses) / len(losses)), choices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model directory (default: the small model)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    model, text = Path(args.model) if args.model else small_model(), TEXT.read_text()
    rows: list[dict[str, Any]] = []
    plain: list[int] = []
    for quantization in (None, "int8", "int4"):
        most = workloads.get("W2")  # that takes most memory
        engine = NBEngine(model, args.dtype, args.threads, quantization=quantization, work=most)
        engine.load()
        perplexity, choices = reading(engine.llm, text)
        plain = plain or choices
        agreement = sum(a == b for a, b in zip(plain, choices)) / len(plain)
        row: dict[str, Any] = {
            "weights": quantization or args.dtype,
            "perplexity": perplexity,
            "greedy_agreement": agreement,
        }
        engine.run(workloads.warmup())
        for name in ("W1", "W2"):
            engine.forget()
            row[f"{name}_output_tok_s"] = measure(engine, workloads.get(name))["output_tok_s"]
        rows.append(row)
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        engine.llm.shutdown()
        del engine
        gc.collect()
    if args.json:
        print(json.dumps(stamp() | {"dtype": args.dtype, "rows": rows}))


if __name__ == "__main__":
    main()
