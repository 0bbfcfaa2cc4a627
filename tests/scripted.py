"""An executor that "samples" what a test wrote down, and a tokenizer in which token i is byte i.

    from tests.scripted import scripted_llm
    llm = scripted_llm({"0": "Hello", "1": ["He", "llo"]}, max_model_len=64)

A script is, for each request id, its output: text or bytes (a token a byte), token ids, or a list of strings (a token
each); at its end comes <eos>. Requests without a script get letters by a rule of seed and index, without end. With n > 1
the ids are the core's: "0_a", "1_a", ...; the script of "a" serves all its answers that have none of their own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from nbengine.config import EngineConfig, ModelConfig
from nbengine.executor.base import Executor
from nbengine.models.facts import ModelFacts
from nbengine.plan import ModelRunnerOutput, NewRequestData, SchedulerOutput
from nbengine.protocol import SampledLogprobs

EOS = 256  # "<eos>", special
VOCAB_SIZE = 260  # 256 bytes, <eos>, <bos>, two special tokens to spare; pieces come behind
MAX_LEN = 4096
SPECIAL = ["<eos>", "<bos>", "<a>", "<b>"]

Script = Mapping[str, str | bytes | Sequence[int] | Sequence[str]]

if TYPE_CHECKING:
    from nbengine.llm import LLM


class ByteTokenizer:
    """Token i < 256 is byte i; 256 is <eos>, 257 <bos>. Has what the front needs of a transformers tokenizer.

    pieces: strings that are one token each, from 260 on (for decoding; `encode` gives bytes).
    """

    eos_token_id: int | None = EOS
    chat_template: str | None = "a template"

    def __init__(self, *, adds_bos: bool = False, pieces: Sequence[str] = ()) -> None:
        self.adds_bos = adds_bos
        self.num_tokens = VOCAB_SIZE + len(pieces)
        alphabet = _byte_alphabet()
        vocabulary = {alphabet[byte]: byte for byte in range(256)}
        vocabulary |= {special: 256 + i for i, special in enumerate(SPECIAL)}
        names = ["".join(alphabet[byte] for byte in piece.encode()) for piece in pieces]
        vocabulary |= {name: VOCAB_SIZE + i for i, name in enumerate(names)}
        self.backend_tokenizer = Tokenizer(models.BPE(vocabulary, []))
        self.backend_tokenizer.add_special_tokens(SPECIAL)
        self.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
        self.backend_tokenizer.decoder = decoders.ByteLevel()

    def __len__(self) -> int:
        return self.num_tokens

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [EOS + 1] * (self.adds_bos and add_special_tokens) + list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self.backend_tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        text = "".join(f"[{message['role']}] {message['content']}\n" for message in conversation)
        return text + ("[assistant] " if options.get("add_generation_prompt") else "")


class SlowTokenizer:
    """The same without `backend_tokenizer`: the front falls back to plain decoding."""

    eos_token_id: int | None = EOS
    chat_template: str | None = None

    def __init__(self) -> None:
        self._fast = ByteTokenizer()

    def __len__(self) -> int:
        return VOCAB_SIZE

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._fast.encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._fast.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        return self._fast.apply_chat_template(conversation, **options)


class ScriptedExecutor(Executor):
    """Runs no model. Keeps each request's tokens, and checks every plan against them."""

    script: ClassVar[Mapping[str, Sequence[int]]] = {}
    facts: ClassVar[ModelFacts] = ModelFacts(max_len=MAX_LEN, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])
    before_step: ClassVar[Callable[[ScriptedExecutor, SchedulerOutput], None] | None] = None
    make_tokenizer: ClassVar[Callable[[], Any]] = ByteTokenizer

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.known: dict[str, NewRequestData] = {}
        self.steps: list[SchedulerOutput] = []
        self.num_blocks = 0
        self.is_shut_down = False

    @classmethod
    def model_facts(cls, model: ModelConfig) -> ModelFacts:
        return cls.facts

    @classmethod
    def load_tokenizer(cls, model: ModelConfig) -> Any:
        return cls.make_tokenizer()

    @property
    def kv_bytes_per_block(self) -> int:
        return 1024

    def available_kv_memory(self) -> int:
        return 512 * 1024

    def initialize_kv_cache(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if (hook := type(self).before_step) is not None:
            hook(self, plan)
        self._apply(plan)
        sampled: list[list[int]] = []
        logprobs: list[list[SampledLogprobs] | None] = []
        computed = dict(zip(plan.scheduled_cached_reqs.request_ids, plan.scheduled_cached_reqs.num_computed_tokens))
        for request_id, count in plan.num_scheduled_tokens.items():
            known = self.known[request_id]
            reached = computed.get(request_id, known.num_computed_tokens) + count
            assert reached <= len(known.token_ids), "the plan computes tokens that nobody has"
            chosen = [self._sample(known)] if reached == len(known.token_ids) else []
            sampled.append(chosen)
            logprobs.append(_logprobs(known, chosen))
        self.steps.append(plan)
        for request_id, chosen in zip(plan.num_scheduled_tokens, sampled):
            self.known[request_id].token_ids.extend(chosen)
        return ModelRunnerOutput(request_ids=list(plan.num_scheduled_tokens), sampled_token_ids=sampled, logprobs=logprobs)

    def forget_requests(self) -> None:
        self.known.clear()

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _apply(self, plan: SchedulerOutput) -> None:
        for request_id in [*plan.finished_req_ids, *plan.preempted_req_ids]:
            self.known.pop(request_id, None)
        for new in [*plan.scheduled_new_reqs, *plan.scheduled_resumed_reqs]:
            self.known[new.request_id] = new
        for request_id, count in zip(plan.scheduled_cached_reqs.request_ids, plan.scheduled_cached_reqs.num_computed_tokens):
            known = self.known[request_id]
            if count >= known.num_prompt_tokens:
                del known.token_ids[count + 1 :]  # a step that is run again

    def _sample(self, known: NewRequestData) -> int:
        index = len(known.token_ids) - known.num_prompt_tokens
        script = self.script.get(known.request_id)
        if script is None and "_" in known.request_id:
            script = self.script.get(known.request_id.partition("_")[2])
        if script is not None:
            return script[index] if index < len(script) else EOS
        return ord("a") + zlib.crc32(f"{known.sampling_params.seed}:{index}".encode()) % 26


def scripted(script: Script | None = None, **overrides: Any) -> type[ScriptedExecutor]:
    """An executor class with this script. overrides: facts, before_step, make_tokenizer."""
    script = script or {}
    lists = [output for output in script.values() if not isinstance(output, str)]
    pieces = sorted({token for output in lists for token in output if isinstance(token, str) and len(token.encode()) > 1})
    tokens = {request_id: _token_ids(output, pieces) for request_id, output in script.items()}
    facts = ModelFacts(max_len=MAX_LEN, vocab_size=VOCAB_SIZE + len(pieces), eos_token_ids=[EOS])
    members: dict[str, Any] = {"facts": facts, "make_tokenizer": partial(ByteTokenizer, pieces=pieces), **overrides}
    for name in ("before_step", "make_tokenizer"):
        if name in members:
            members[name] = staticmethod(members[name])
    return type("ScriptedExecutor", (ScriptedExecutor,), {"script": tokens, **members})


def scripted_llm(script: Script | None = None, *, executor: Mapping[str, Any] | None = None, **options: Any) -> LLM:
    """An LLM over a scripted executor; a small one by default: 31 usable blocks of 4 tokens.

    executor: overrides for `scripted`. options: EngineArgs.
    """
    from nbengine.llm import LLM

    small = {"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 32}
    return LLM("scripted", executor_cls=scripted(script, **(executor or {})), **{**small, **options})


def _token_ids(output: str | bytes | Sequence[int] | Sequence[str], pieces: Sequence[str]) -> list[int]:
    if isinstance(output, str):
        return list(output.encode())
    ids: list[int] = []
    for token in output:
        if isinstance(token, str):
            ids.append(VOCAB_SIZE + pieces.index(token) if token in pieces else ord(token))
        else:
            ids.append(token)
    return ids


def _logprobs(known: NewRequestData, chosen: list[int]) -> list[SampledLogprobs] | None:
    """The chosen token at -0.5 and rank 1, its successors behind it at -1.5, -2.5, …"""
    count = known.sampling_params.logprobs
    if count is None:
        return None
    values = [-0.5 - rank for rank in range(count)]
    return [SampledLogprobs([t, *((t + i) % VOCAB_SIZE for i in range(count))], [-0.5, *values], 1) for t in chosen]


def _byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
