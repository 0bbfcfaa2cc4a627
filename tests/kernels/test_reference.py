"""The specification itself, against torch's and transformers' own."""

import pytest
import torch
import torch.nn.functional as F
from nbengine_kernels import build_rotary_table, reference, rotary_frequencies
from nbengine_kernels.quantization import dequantize_int4, dequantize_int8, quantize_int4, quantize_int8
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from .cases import BATCHES, assert_close, attention_case


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("window", [0, 5])
def test_attention_is_sdpa_request_by_request(batch: list[tuple[int, int]], window: int) -> None:
    case = attention_case(batch, heads=(6, 2), dim=32)
    got = reference.paged_attention(**case, sliding_window=window)
    for r, (length, n) in enumerate(batch):
        begin = int(case["query_start_loc"][r])
        blocks = case["block_tables"][r, : -(-length // 16)].long()
        keys, values = (
            case[name][blocks].transpose(0, 1).flatten(1, 2)[:, :length] for name in ("key_cache", "value_cache")
        )
        position, key = torch.arange(length - n, length)[:, None], torch.arange(length)
        mask = (key <= position) & ((key > position - window) if window else True)
        query = case["query"][begin : begin + n].transpose(0, 1)
        wanted = F.scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=mask, enable_gqa=True)
        assert_close(got[begin : begin + n], wanted[0].transpose(0, 1))


def test_attention_soft_cap() -> None:
    case = attention_case([(1, 1), (20, 20)], heads=(2, 2), dim=32)
    wide = reference.paged_attention(**case, soft_cap=1e6)
    assert_close(wide, reference.paged_attention(**case))
    flat = reference.paged_attention(**case, soft_cap=1e-6)  # all scores alike: a plain mean
    block = case["block_tables"][1].long()
    values = case["value_cache"][block].transpose(0, 1).flatten(1, 2)[:, :20]
    assert_close(flat[-1], values.mean(1))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "mscale": 0.7, "mscale_all_dim": 1.2},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024, "truncate": False, "beta_fast": 16},
    ],
    ids=lambda scaling: f"{scaling['rope_type']}{len(scaling)}",
)
def test_rotary_frequencies_are_those_of_transformers(scaling: dict[str, object]) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=2048,
        rope_parameters={**scaling, "rope_theta": 50000.0},
    )
    frequencies, factor = rotary_frequencies(64, base=50000.0, scaling=scaling, max_position_embeddings=2048)
    kind = str(scaling["rope_type"])
    if kind == "default":
        wanted, wanted_factor = 1.0 / 50000.0 ** (torch.arange(0, 64, 2) / 64), 1.0
    else:
        wanted, wanted_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    torch.testing.assert_close(frequencies, wanted, rtol=1e-6, atol=1e-9)
    assert factor == pytest.approx(wanted_factor)


def test_rotary_embedding_is_that_of_transformers() -> None:
    query, key = torch.randn(7, 4, 64), torch.randn(7, 2, 64)
    positions = torch.tensor([0, 1, 5, 99, 3, 3, 42])
    cos, sin = build_rotary_table(64, 100)[positions].chunk(2, dim=-1)
    args = (
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        torch.cat((cos, cos), -1)[None],
        torch.cat((sin, sin), -1)[None],
    )
    wanted = [t[0].transpose(0, 1) for t in apply_rotary_pos_emb(*args)]
    reference.rotary_embedding(positions, query, key, build_rotary_table(64, 100))
    assert_close(query, wanted[0])
    assert_close(key, wanted[1])


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "longrope"}, "not known"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, "original_max"),
    ],
)
def test_rotary_scaling_that_cannot_be(scaling: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rotary_frequencies(64, scaling=scaling)
    with pytest.raises(ValueError, match="even"):
        rotary_frequencies(63)


def test_rms_norm() -> None:
    x, weight, residual = torch.randn(3, 40), torch.randn(40), torch.randn(3, 40)
    assert_close(reference.rms_norm(x, weight, 1e-6), F.rms_norm(x, (40,), weight, 1e-6))
    y, total = reference.rms_norm(x, weight, 1e-6, residual)
    assert_close(total, x + residual)
    assert_close(y, F.rms_norm(x + residual, (40,), weight, 1e-6))


def test_sample_filter_by_hand() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()

    def kept(**settings: float) -> list[int]:
        given = {name: torch.tensor([value]) for name, value in settings.items()}
        return torch.isfinite(reference.sample_filter(logits, **given))[0].nonzero().flatten().tolist()

    assert kept() == kept(top_k=0) == kept(top_k=-1) == kept(top_k=9) == kept(top_p=1.0) == kept(min_p=0.0) == [0, 1, 2, 3]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.79) == [0, 1]
    assert kept(top_p=0.81) == [0, 1, 2]
    assert kept(top_p=0.0) == [0]
    assert kept(min_p=0.25) == [0, 1, 2]
    assert kept(top_k=2, top_p=0.6) == [0]  # after top-k the first has 0.625
    assert kept(min_p=0.5, top_p=0.6) == [0]  # and after min-p too


def test_grammar_bitmask_by_hand() -> None:
    logits = torch.zeros(1, 40)
    bitmask = torch.tensor([[-(2**31) | 1, 2]], dtype=torch.int32)
    assert torch.isfinite(reference.apply_grammar_bitmask(logits, bitmask))[0].nonzero().flatten().tolist() == [0, 31, 33]


def test_quantization_error_is_within_half_a_step() -> None:
    weight = torch.randn(24, 64)
    codes, scale = quantize_int8(weight)
    assert ((dequantize_int8(codes, scale, dtype=torch.float32) - weight).abs() <= scale[:, None] * 0.501).all()
    codes4, scale4, zero4 = quantize_int4(weight)
    error = (dequantize_int4(codes4, scale4, zero4, dtype=torch.float32) - weight).abs().view(24, 2, 32)
    assert (error <= scale4[..., None] * 0.6).all()  # scale and lower bound are rounded to bfloat16
    with pytest.raises(ValueError, match="multiple of 32"):
        quantize_int4(torch.zeros(4, 40))
