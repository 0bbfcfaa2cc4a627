"""An executor that "samples" what a test wrote down, and a tokenizer in which token i is byte i.

    from tests.scripted import scripted_llm
    llm = scripted_llm({"0": "Hello", "1": ["He", "llo"]}, max_model_len=64)

A script is, for each request id, its output: text or bytes (a token a byte), token ids, or a list of strings (a token
each); at its end comes <eos>. Requests without a script get letters by a rule of seed and index, without end. With n > 1
the ids are the core's: "0_a", "1_a", ...; the script of "a" serves all its answers that have none of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from nbengine.config import EngineConfig, ModelConfig
from nbengine.executor.simulated import SimulatedExecutor, SimulatedRequest
from nbengine.models.byte_tokenizer import EOS, byte_alphabet
from nbengine.models.facts import ModelFacts
from nbengine.plan import ModelRunnerOutput, SchedulerOutput
from nbengine.protocol import SampledLogprobs

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
        alphabet = byte_alphabet()
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


class ScriptedExecutor(SimulatedExecutor):
    """A simulation that says what was written down. Keeps the plans that it was given."""

    script: ClassVar[Mapping[str, Sequence[int]]] = {}
    facts: ClassVar[ModelFacts] = ModelFacts(max_len=MAX_LEN, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])
    before_step: ClassVar[Callable[[ScriptedExecutor, SchedulerOutput], None] | None] = None
    make_tokenizer: ClassVar[Callable[[], Any]] = ByteTokenizer
    kv_bytes_per_token = 256
    kv_memory_bytes = 512 * 1024

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.steps: list[SchedulerOutput] = []
        self.is_shut_down = False

    @classmethod
    def model_facts(cls, model: ModelConfig) -> ModelFacts:
        return cls.facts

    @classmethod
    def load_tokenizer(cls, model: ModelConfig) -> Any:
        return cls.make_tokenizer()

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if (hook := type(self).before_step) is not None:
            hook(self, plan)
        result = super().execute_model(plan)
        self.steps.append(plan)
        return result

    def next_token(self, request: SimulatedRequest) -> int:
        name, index = request.request_id, request.num_output_tokens
        script = self.script.get(name)
        if script is None and "_" in name:
            script = self.script.get(name.partition("_")[2])
        if script is None:
            return ord("a") + crc32(f"{request.sampling_params.seed}:{index}".encode()) % 26
        return script[index] if index < len(script) else EOS

    def logprobs(self, request: SimulatedRequest, chosen: list[int]) -> list[SampledLogprobs] | None:
        """The chosen token at -0.5 and rank 1, its successors behind it at -1.5, -2.5, …"""
        count = request.sampling_params.logprobs
        if count is None:
            return None
        values = [-0.5 - rank for rank in range(count)]
        return [SampledLogprobs([t, *((t + i) % VOCAB_SIZE for i in range(count))], [-0.5, *values], 1) for t in chosen]

    def shutdown(self) -> None:
        self.is_shut_down = True


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
