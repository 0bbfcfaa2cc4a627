"""Small notebooks that the browser tests open."""

from __future__ import annotations

from pathlib import Path

import nbformat

ENGINE = """\
from nbengine import LLM, SamplingParams
llm = LLM("smollm2-135m", num_gpu_blocks_override=13, block_size=16, max_model_len=160, max_num_batched_tokens=32,
          max_num_seqs=4)
dbg = llm.debug()
prompts = [
    "The history of Rome began",
    "Explain in simple words how a bicycle stays upright when it moves:",
    "A list of the planets, starting with the one nearest to the sun: Mercury,",
    "Once upon a time, in a village by the sea, there lived an old fisherman who",
    "Water boils at 100 degrees Celsius, but on a high mountain",
]
sampling = dict(temperature=0, max_tokens=40, ignore_eos=True)
"""
ADD = "for prompt in prompts:\n    dbg.add(prompt, **sampling)\n"


def write_notebook(path: Path, *cells: str) -> None:
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(metadata={"kernelspec": kernel}, cells=code), path)
