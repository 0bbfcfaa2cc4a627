"""The engines that are measured: nbengine and what people would use instead, behind one small interface.

A peer that is not installed says so when it is loaded; install commands are in README.md. Each peer runs the same token ids
greedily, never stops at eos, and does not detokenise.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from workloads import Workload

Tokens = list[list[int]]
KV_BLOCK = 16
Times = list[list[float]]  # perf_counter of each token


class Peer(ABC):
    """One engine. `run` returns the tokens and when each one came (None where the engine cannot tell)."""

    name: ClassVar[str]

    def __init__(self, model_dir: Path, dtype: str, threads: int, work: Workload, quantization: str | None = None) -> None:
        """work: what will be run, for the engine to take as much KV cache as that needs where it can be told."""
        self.model_dir, self.dtype, self.threads, self.quantization = model_dir, dtype, threads, quantization
        self.work = work

    def prepare(self) -> None:
        """Make the files that the engine wants, once; not timed."""

    @abstractmethod
    def load(self) -> None: ...

    @abstractmethod
    def run(self, work: Workload) -> tuple[Tokens, Times | None]: ...

    def forget(self) -> None:
        """Drop cached prefixes between repeats."""


class LLMEngineShaped(Peer):
    """An engine with vLLM's offline interface: nbengine itself, and vLLM. Stepped by hand: each token has its time."""

    llm: Any
    count = 0  # of requests, over the repeats

    @abstractmethod
    def params(self, length: int) -> Any:
        """Greedy, exactly `length` tokens, deltas without text."""

    def run(self, work: Workload) -> tuple[Tokens, Times | None]:
        engine = self.llm.llm_engine
        index: dict[str, int] = {}
        for i, (prompt, length) in enumerate(work):
            request_id = f"b{self.count}"
            self.count += 1
            index[request_id] = i
            engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, self.params(length))
        tokens: Tokens = [[] for _ in work]
        times: Times = [[] for _ in work]
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                i = index[output.request_id]
                new = list(output.outputs[0].token_ids)
                tokens[i] += new
                times[i] += [now] * len(new)
        return tokens, times

    def forget(self) -> None:
        self.llm.reset_prefix_cache()


class NBEngine(LLMEngineShaped):
    name = "nbengine"

    def load(self) -> None:
        import torch

        from nbengine import LLM

        torch.set_num_threads(self.threads)
        shared = len(common_prefix([p for p, _ in self.work])) // KV_BLOCK if len(self.work) > 1 else 0
        own = [-(-(len(p) + n) // KV_BLOCK) - shared for p, n in self.work]
        blocks = shared + sum(own) + 1 + 16  # block 0, and what the warm-up takes
        self.llm = LLM(
            str(self.model_dir),
            dtype=self.dtype,
            quantization=self.quantization,
            max_model_len=1024,
            max_num_seqs=64,
            block_size=KV_BLOCK,
            num_gpu_blocks_override=blocks,
        )

    def params(self, length: int) -> Any:
        from nbengine import RequestOutputKind, SamplingParams

        kind = RequestOutputKind.DELTA
        return SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False, output_kind=kind)


class VLLM(LLMEngineShaped):
    name = "vllm"

    def load(self) -> None:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("OMP_NUM_THREADS", str(self.threads))
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from vllm import LLM

        self.llm = LLM(model=str(self.model_dir), dtype=self.dtype, max_model_len=1024, seed=0)

    def params(self, length: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        kind = RequestOutputKind.DELTA
        return SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False, output_kind=kind)


class TransformersGenerate(Peer):
    """`model.generate` on one left-padded batch."""

    name = "transformers-generate"

    def load(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(self.threads)
        dtype = getattr(torch, self.dtype)
        self.model = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=dtype, attn_implementation="sdpa").eval()

    def run(self, work: Workload) -> tuple[Tokens, Times | None]:
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        width, most = max(len(p) for p, _ in work), max(n for _, n in work)
        ids = torch.full((len(work), width), 2)
        mask = torch.zeros((len(work), width), dtype=torch.long)
        for i, (prompt, _) in enumerate(work):
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        ticks: list[float] = []

        class Tick(StoppingCriteria):  # type: ignore[misc]
            def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
                ticks.append(time.perf_counter())
                return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=most,
                min_new_tokens=most,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=2,
                stopping_criteria=StoppingCriteriaList([Tick()]),
            )
        return [out[i, width : width + n].tolist() for i, (_, n) in enumerate(work)], [ticks[:n] for _, n in work]


class TransformersCB(TransformersGenerate):
    """transformers' own continuous batching."""

    name = "transformers-cb"

    def run(self, work: Workload) -> tuple[Tokens, Times | None]:
        import torch
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=2, max_new_tokens=128)
        pages = sum(-(-(len(p) + n + 1) // 256) + 1 for p, n in work)
        batching = ContinuousBatchingConfig(page_size=256, num_blocks=max(64, pages), max_batch_tokens=512)
        tokens: Tokens = [[] for _ in work]
        times: Times = [[] for _ in work]
        with torch.inference_mode():
            manager = self.model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
            manager.start()
            index = {}
            for i, (prompt, length) in enumerate(work):
                added = manager.add_request(list(prompt), max_new_tokens=length, eos_token_id=-1, record_timestamps=True)
                index[added] = i
            left = len(work)
            while left:
                result = manager.get_result(timeout=1)
                if result is None or not result.is_finished():
                    continue
                if result.error:
                    raise RuntimeError(result.error)
                i = index[result.request_id]
                tokens[i] = list(result.generated_tokens)
                times[i] = list(getattr(result, "timestamps", None) or [])
                left -= 1
            manager.stop(block=True)
        return tokens, times if all(times) else None


class OpenVINO(Peer):
    """OpenVINO GenAI's continuous batching; needs `optimum-cli export openvino` once (README.md)."""

    name = "openvino"

    def load(self) -> None:
        import openvino_genai

        self.genai = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.enable_prefix_caching = 2, True
        scheduler.max_num_batched_tokens, scheduler.max_num_seqs, scheduler.dynamic_split_fuse = 2048, 256, True
        hint = {"float32": "f32", "bfloat16": "bf16"}[self.dtype]
        options = {"INFERENCE_NUM_THREADS": self.threads, "INFERENCE_PRECISION_HINT": hint}
        exported = os.environ["NBENGINE_BENCH_OPENVINO_DIR"]
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(exported, scheduler, "CPU", options)
        self.count = self.shift = 0

    def forget(self) -> None:
        self.shift += 7919  # its prefix cache cannot be dropped: each repeat takes other tokens of the same shape

    def run(self, work: Workload) -> tuple[Tokens, Times | None]:
        import numpy as np
        import openvino

        handles = []
        for prompt, length in work:
            config = self.genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = length
            config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
            shifted = [(t - 17 + self.shift) % 49135 + 17 for t in prompt]
            tensor = openvino.Tensor(np.array([shifted], dtype=np.int64))
            handles.append(self.pipeline.add_request(self.count, tensor, config))
            self.count += 1
        tokens: Tokens = [[] for _ in work]
        times: Times = [[] for _ in work]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now = time.perf_counter()
            for i, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        tokens[i] += output.generated_ids
                        times[i] += [now] * len(output.generated_ids)
        return tokens, times


class LlamaCpp(Peer):
    """llama.cpp by its low-level interface, batched as its server does: a token of every slot, then prompt tokens.

    NBENGINE_BENCH_GGUF names the model's GGUF file; files of the other types are made beside it.
    """

    name = "llama-cpp"
    BATCH = 2048  # tokens a call
    KV_CELLS = 256  # its cache's size is a multiple of this

    def prepare(self) -> None:
        import llama_cpp

        kind = {"int8": "q8_0", "int4": "q4_0", None: self.dtype}[self.quantization]
        source = Path(os.environ["NBENGINE_BENCH_GGUF"])
        self.file = source.with_name(f"{source.stem}-{kind}.gguf")
        if not self.file.exists():
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype = {"float32": 0, "bfloat16": 32, "q8_0": 7, "q4_0": 2}[kind]
            params.allow_requantize, params.nthread = True, self.threads
            if llama_cpp.llama_model_quantize(bytes(source), bytes(self.file), params):
                raise RuntimeError(f"llama.cpp could not make {self.file}.")

    def load(self) -> None:
        import llama_cpp

        self.api = llama_cpp
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)  # kept: C holds its address
        llama_cpp.llama_log_set(self.quiet, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(bytes(self.file), llama_cpp.llama_model_default_params())
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.context: Any = None
        self.batch: Any = None

    def _make_context(self, work: Workload) -> None:
        if self.context is not None:
            self.api.llama_free(self.context)
        params = self.api.llama_context_default_params()
        cells = sum(len(p) + n for p, n in work) + self.KV_CELLS
        params.n_ctx = -(-cells // self.KV_CELLS) * self.KV_CELLS
        params.n_batch, params.n_ubatch, params.n_seq_max = self.BATCH, 512, len(work) + 1
        params.n_threads = params.n_threads_batch = self.threads
        params.kv_unified = True
        self.context = self.api.llama_init_from_model(self.model, params)
        self.batch = self.api.llama_batch_init(self.BATCH, 0, len(work) + 1)

    def _add(self, token: int, position: int, slot: int, wanted: bool) -> int:
        batch, i = self.batch, self.batch.n_tokens
        batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, slot
        batch.n_tokens = i + 1
        return int(i)

    def _decode(self) -> None:
        if self.api.llama_decode(self.context, self.batch):
            raise RuntimeError("llama_decode failed")

    def run(self, work: Workload) -> tuple[Tokens, Times | None]:
        import numpy as np

        self._make_context(work)  # an empty cache; takes milliseconds
        memory = self.api.llama_get_memory(self.context)
        prefix = common_prefix([p for p, _ in work]) if len(work) > 1 else []
        share = len(prefix)
        for start in range(0, share, self.BATCH):  # once, in a slot of its own, and copied by reference
            self.batch.n_tokens = 0
            for i in range(start, min(share, start + self.BATCH)):
                self._add(prefix[i], i, len(work), False)
            self._decode()
        if share:
            for slot in range(len(work)):
                self.api.llama_memory_seq_cp(memory, len(work), slot, 0, share)
        done = [share] * len(work)
        tokens: Tokens = [[] for _ in work]
        times: Times = [[] for _ in work]
        while any(len(t) < n for t, (_, n) in zip(tokens, work)):
            self.batch.n_tokens = 0
            wanted = []
            for slot, (prompt, length) in enumerate(work):
                if tokens[slot] and len(tokens[slot]) < length:
                    position = len(prompt) + len(tokens[slot]) - 1
                    wanted.append((slot, self._add(tokens[slot][-1], position, slot, True)))
            for slot, (prompt, _) in enumerate(work):
                while done[slot] < len(prompt) and self.batch.n_tokens < self.BATCH:
                    last = done[slot] == len(prompt) - 1
                    row = self._add(prompt[done[slot]], done[slot], slot, last)
                    if last:
                        wanted.append((slot, row))
                    done[slot] += 1
            self._decode()
            for slot, row in wanted:
                logits = self.api.llama_get_logits_ith(self.context, row)
                tokens[slot].append(int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax()))
            now = time.perf_counter()
            for slot, _ in wanted:
                times[slot].append(now)
                if len(tokens[slot]) == work[slot][1]:
                    self.api.llama_memory_seq_rm(memory, slot, -1, -1)
        return tokens, times


def common_prefix(prompts: list[list[int]]) -> list[int]:
    first = prompts[0]
    most = min(map(len, prompts)) - 1  # the last token is always computed
    return first[: next((i for i in range(most) if any(p[i] != first[i] for p in prompts)), most)]


ENGINES = (NBEngine, VLLM, OpenVINO, LlamaCpp, TransformersCB, TransformersGenerate)
PEERS: dict[str, type[Peer]] = {engine.name: engine for engine in ENGINES}
