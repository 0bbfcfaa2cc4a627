"""LLM: a model and its engine in one object, for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from nbengine.config import EngineArgs
from nbengine.engine import interrupts
from nbengine.engine.input_processor import ParsedPrompt, Prompt
from nbengine.engine.llm_engine import LLMEngine, Prepared
from nbengine.engine.progress import Progress
from nbengine.engine.stats import Metric
from nbengine.errors import InvalidParameterError, InvalidRequestError, NBEngineError, StalledError
from nbengine.outputs import RequestOutput
from nbengine.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from nbengine.debug.debugger import Debugger

Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None
UseTqdm = bool | Callable[..., Any]


class LLM:
    """A model, loaded, with the engine around it.

        llm = LLM("smollm2-135m")
        llm.generate(["The capital of France is", "1 2 3"], SamplingParams(temperature=0, max_tokens=8))

    model: a catalog name, a local directory, a Hub id or a GGUF file. engine_args: see EngineArgs.
    `with LLM(...) as llm`, `llm.shutdown()` and `del llm` free the memory. Raises ConfigError, ModelError.

    An interrupt (Ctrl-C) or a failed step leaves everything in place: `llm.wait_for_completion()` goes on and returns what
    was left, `llm.partial_outputs()` shows what there is, `llm.abort_all()` ends all, `llm.reset()` drops all.
    """

    def __init__(self, model: str = "smollm2-135m", **engine_args: Any) -> None:
        self.llm_engine = LLMEngine.from_engine_args(EngineArgs.from_options(model=model, **engine_args))
        self._debugger: Debugger | None = None

    # -------------------------------------------------------------------------------------------------------- generate

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        priority: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """The model's continuation of each prompt, in the order of the prompts.

        prompts: text, token ids, {"prompt": text}, {"prompt_token_ids": ids}, or a list of such.
        sampling_params: one for all, or one a prompt; default: what the model's makers recommend.
        use_tqdm: show a progress bar (or the tqdm-like class to make it with). priority: the smallest goes first, under
        scheduling_policy="priority".

        Raises InvalidRequestError if any prompt is refused; then none is run.
        """
        return self._run(self.enqueue(prompts, sampling_params, priority=priority), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The model's answer to each conversation, in order.

        messages: one conversation, as a list of {"role": …, "content": …}, or a list of conversations.
        """
        if add_generation_prompt and continue_final_message:
            raise InvalidParameterError("continue_final_message goes with add_generation_prompt=False.")
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
            raise InvalidRequestError(
                'messages must be a list of {"role": …, "content": …}, or a list of such lists, '
                f"got {type(messages).__name__}."
            )
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **(chat_template_kwargs or {}),
        }
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast(Sequence[Sequence[Message]], [messages] if one else messages)
        parse = self.llm_engine.input_processor.parse_chat
        prompts = [parse(conversation, options) for conversation in conversations]
        return self._run(self._enqueue(prompts, sampling_params, 0), use_tqdm)

    def enqueue(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, priority: int | Sequence[int] = 0
    ) -> list[str]:
        """Add requests without running them; returns their ids. All are added, or, if one is refused, none."""
        return self._enqueue(_prompt_list(prompts), sampling_params, priority)

    def wait_for_completion(self, *, use_tqdm: UseTqdm = True) -> list[RequestOutput]:
        """Run until no request is left. Returns every output that nobody has taken yet, in the order of the requests."""
        engine = self.llm_engine
        self._run_until_done(list(engine.output_processor.requests), use_tqdm)
        return engine.take_outputs()

    # -------------------------------------------------------------------------------------------------------- controls

    def waiting(self) -> list[str]:
        """Ids of waiting requests, the next to be admitted first."""
        return self.llm_engine.waiting()

    def running(self) -> list[str]:
        """Ids of running requests, in order of admission."""
        return self.llm_engine.running()

    def partial_outputs(self) -> list[RequestOutput]:
        """What the live requests have so far."""
        return self.llm_engine.partial_outputs()

    def abort(self, request_ids: str | list[str]) -> None:
        """End requests; what they had so far is their output, with finish_reason "abort"."""
        self.llm_engine.abort_request(request_ids)

    def abort_all(self) -> list[str]:
        """End every request and leave an empty, usable engine. Returns the ids that were alive."""
        return self.llm_engine.abort_all()

    def reset(self) -> list[str]:
        """Drop every request and the step under way, after a failed step for one; the prefix cache goes too.

        Weights stay. Returns the ids that were alive.
        """
        return self.llm_engine.reset()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. False, and nothing changes, while requests hold blocks."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests)

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend, else SamplingParams()."""
        return self.llm_engine.default_sampling_params()

    def get_tokenizer(self) -> Any:
        return self.llm_engine.get_tokenizer()

    def get_metrics(self) -> list[Metric]:
        """Counters, gauges and mean times of this engine, under vLLM's names."""
        return self.llm_engine.get_metrics()

    def debug(self, *, undo: bool = True, tensors: bool = True) -> Debugger:
        """Attach the window: step phase by phase, look inside, break, rewind. Records are kept from here on.

        undo: keep what going back needs. tensors: keep each step's batch. A cell that is run again gets the same Debugger,
        as long as that is attached. Raises ValueError if the engine is watched by another one, or with other options.
        """
        from nbengine.debug.debugger import Debugger

        made = self._debugger
        if made is None or not made.is_attached or (made.undo is not None, made.recorder.tensors) != (undo, tensors):
            self._debugger = made = Debugger(self, undo=undo, tensors=tensors)
        return made

    def shutdown(self) -> None:
        """Free weights and KV cache. Calling it twice is fine."""
        self.llm_engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        engine = self.llm_engine
        cache = engine.config.cache
        return (
            f"LLM({engine.config.model.model!r}: {cache.num_blocks - 1} KV blocks of {cache.block_size} tokens, "
            f"{len(engine.running())} running, {len(engine.waiting())} waiting)"
        )

    # ---------------------------------------------------------------------------------------------------------- within

    def _enqueue(
        self, prompts: Sequence[Prompt | ParsedPrompt], sampling_params: Params, priority: int | Sequence[int]
    ) -> list[str]:
        engine = self.llm_engine
        default = engine.default_sampling_params() if sampling_params is None else sampling_params
        params = _one_each("sampling_params", default, len(prompts))
        priorities = _one_each("priority", priority, len(prompts))
        prepared: list[Prepared] = []
        for prompt, param, rank in zip(prompts, params, priorities):
            request, text = engine.input_processor.process(engine.new_request_id(), prompt, param, priority=rank)
            request.sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
            prepared.append((request, text))
        request_ids = [request.request_id for request, _ in prepared]
        engine.add_prepared(prepared)
        return request_ids

    def _run(self, request_ids: list[str], use_tqdm: UseTqdm) -> list[RequestOutput]:
        self._run_until_done(request_ids, use_tqdm)
        outputs = {output.request_id: output for output in self.llm_engine.take_outputs(request_ids)}
        if dropped := [request_id for request_id in request_ids if request_id not in outputs]:
            raise NBEngineError(
                f"Requests {', '.join(dropped)} are not in the engine any more: while they ran, it was reset, or put back "
                "to a moment before they came. Ask again."
            )
        return [outputs[request_id] for request_id in request_ids]

    def _run_until_done(self, request_ids: list[str], use_tqdm: UseTqdm) -> None:
        """Step until these requests have ended. Their outputs stay with the engine, so that no exception can lose one.

        Interrupts arrive where a step can be run again from, and nowhere else.
        """
        engine = self.llm_engine
        alive = set(request_ids)
        with interrupts.deferred(), Progress(len(alive), use_tqdm) as progress:
            while True:
                ended = {request_id for request_id in alive if not engine.is_alive(request_id)}
                progress.advance(len(ended))
                alive -= ended
                if not alive:
                    return
                if not engine.has_work():
                    raise StalledError(
                        f"Requests wait, but the engine has nothing to do: is it paused?\n{engine.describe()}"
                    )
                progress.count_tokens(engine.advance())


def _prompt_list(prompts: Any) -> Sequence[Prompt]:
    """One prompt, or many, as a list. A list of numbers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, Sequence) and not isinstance(prompts, bytes):
        looks_like_ids = len(prompts) > 0 and not any(isinstance(p, str | Mapping | Sequence) for p in prompts)
        return [cast(Prompt, prompts)] if looks_like_ids else prompts
    if hasattr(prompts, "__array__"):
        return [prompts] if prompts.ndim == 1 else list(prompts)
    raise InvalidParameterError(f"prompts must be a prompt or a list of prompts, got {type(prompts).__name__}.")


def _one_each(what: str, value: Any, count: int) -> Sequence[Any]:
    """A value for each of `count` prompts."""
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise InvalidParameterError(f"{what} must be one for all, or one for each of {count} prompts, got {len(value)}.")
    return value
