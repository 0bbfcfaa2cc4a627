"""Every function of a dialect against the reference, over a grid. Run by test_cpu in process, by test_gpu interpreted."""

from typing import Any

import torch
from nbengine_kernels import Kernels, build_rotary_table, reference
from torch import Tensor

from .cases import BATCHES, assert_close, attention_case

DTYPES = (torch.float32, torch.bfloat16)


def check_attention(kernels: Kernels, dtype: torch.dtype, small: bool = False) -> None:
    shapes = [((9, 3), 64, 16), ((4, 4), 32, 16), ((7, 1), 80, 16), ((8, 2), 128, 8), ((2, 1), 64, 1), ((64, 1), 32, 16)]
    options: list[dict[str, Any]] = [{}, {"sliding_window": 20}, {"soft_cap": 3.0}, {"sliding_window": 1, "soft_cap": 2.0}]
    batches = {name: BATCHES[name] for name in ("block boundary", "ragged")} if small else BATCHES
    for heads, dim, block_size in shapes[2:3] if small else shapes:
        for name, batch in batches.items():
            case = attention_case(batch, heads=heads, dim=dim, block_size=block_size, dtype=dtype)
            for option in options[3 if small else 0 :]:
                what = f"{name}, heads {heads}, dim {dim}, block {block_size}, {option}"
                assert_close(kernels.paged_attention(**case, **option), reference.paged_attention(**case, **option), what)


def check_shared_prefix(kernels: Kernels, dtype: torch.dtype) -> None:
    """Tables that begin with the same blocks: many, few, one token beyond, a prefill and a short request among them."""
    lengths = [(96, 1), (81, 1), (100, 1), (250, 1), (100, 20), *[(160 + i, 1) for i in range(19)], (400, 1)]
    for heads, dim, block_size in (((9, 3), 64, 16), ((7, 1), 80, 16), ((16, 1), 32, 8), ((2, 2), 32, 4)):
        case = attention_case(lengths, heads=heads, dim=dim, block_size=block_size, dtype=dtype, shared=80)
        for option in ({}, {"soft_cap": 3.0}, {"sliding_window": 20}):
            what = f"heads {heads}, block {block_size}, {option}"
            assert_close(kernels.paged_attention(**case, **option), reference.paged_attention(**case, **option), what)


def check_attention_edges(kernels: Kernels) -> None:
    empty = attention_case([], heads=(4, 2), dim=32)
    assert kernels.paged_attention(**empty).shape == (0, 4, 32)
    # query as a strided slice of a fused projection; padded rows of `out` stay as they are; caches halves of one tensor
    case = attention_case([(20, 3), (40, 1)], heads=(4, 2), dim=32)
    wanted = reference.paged_attention(**case)
    fused = torch.zeros(6, 8, 32)
    fused[:4, :4] = case["query"]
    both = torch.stack((case["key_cache"], case["value_cache"]), dim=1)
    out = torch.full((6, 4, 32), 7.0)
    strided = {**case, "query": fused[:, :4], "key_cache": both[:, 0], "value_cache": both[:, 1]}
    assert kernels.paged_attention(**strided, out=out) is out
    assert_close(out[:4], wanted)
    assert (out[4:] == 7.0).all()


def check_norm(kernels: Kernels, dtype: torch.dtype) -> None:
    for rows, width in ((0, 64), (1, 576), (5, 33), (200, 128)):
        x, residual = torch.randn(2, rows, width).to(dtype)
        weight = torch.randn(width).to(dtype)
        assert_close(kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
        wanted = reference.rms_norm(x, weight, 1e-5, residual)
        for got, want in zip(kernels.rms_norm(x, weight, 1e-5, residual), wanted):
            assert_close(got, want)
        y, total = kernels.rms_norm(x, weight, 1e-5, residual, out=x, residual_out=residual)  # all in place
        assert y is x and total is residual
        assert_close(x, wanted[0])
        assert_close(residual, wanted[1])
    wide = torch.randn(4, 96).to(dtype)
    weight = torch.randn(32).to(dtype)
    assert_close(kernels.rms_norm(wide[:, 32:64], weight, 1e-5), reference.rms_norm(wide[:, 32:64], weight, 1e-5))


def check_rotary_and_write(kernels: Kernels, dtype: torch.dtype) -> None:
    for tokens, (heads, kv_heads), dim, rotary_dim in ((0, (4, 2), 64, 64), (1, (9, 3), 64, 64), (20, (4, 4), 80, 32)):
        table = build_rotary_table(rotary_dim, 128)
        positions = torch.randint(0, 128, (tokens,))
        slots = torch.randperm(8 * 16)[:tokens]
        slots[::3] = -1
        fused = torch.randn(tokens, heads + 2 * kv_heads, dim).to(dtype)
        cache = torch.randn(2, 8, kv_heads, 16, dim).to(dtype)

        given = (fused, cache, positions, table, slots)
        wanted = _turn_and_write(reference, False, *given)
        for together in (False, True):
            for got, want in zip(_turn_and_write(kernels, together, *given), wanted):
                assert_close(got, want)


def _turn_and_write(
    kernels: Kernels, together: bool, fused: Tensor, cache: Tensor, positions: Tensor, table: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor]:
    fused, cache = fused.clone(), cache.clone()
    kv_heads = cache.shape[2]
    query, key, value = fused.split([fused.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if together:
        kernels.rotary_write_kv(positions, query, key, value, table, cache[0], cache[1], slots)
    else:
        kernels.rotary_embedding(positions.int(), query, key, table)
        kernels.write_kv(key, value, cache[0], cache[1], slots)
    return fused, cache


def check_activation(kernels: Kernels, dtype: torch.dtype) -> None:
    for rows, width in ((0, 8), (1, 1536), (37, 30)):
        x = torch.randn(rows, 2 * width).to(dtype) * 3
        assert_close(kernels.silu_and_mul(x), reference.silu_and_mul(x))
        assert_close(kernels.gelu_and_mul(x), reference.gelu_and_mul(x))
        out = torch.empty(rows, width, dtype=dtype)
        assert kernels.gelu_and_mul(x, "tanh", out=out) is out
        assert_close(out, reference.gelu_and_mul(x, "tanh"))


def check_sampling(kernels: Kernels, rows: int, width: int) -> None:
    rng = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, width, generator=rng) * 3
    top_k = torch.randint(-1, 60, (rows,), generator=rng)
    top_p, min_p = torch.rand(rows, generator=rng), torch.rand(rows, generator=rng) * 0.1
    top_k[:1], top_p[1:2], min_p[2:3], top_k[3:4], top_p[3:4] = width, 1.0, 0.0, 1, 0.0
    settings = [
        (top_k, None, None),
        (None, top_p, None),
        (None, None, min_p),
        (top_k.int(), top_p, None),
        (top_k, top_p, min_p),
    ]
    for setting in settings[4:] if 0 < rows < 10 and width < 2000 else settings:  # the interpreter is slow
        assert torch.equal(kernels.sample_filter(logits, *setting), reference.sample_filter(logits, *setting))
    bitmask = torch.randint(-(2**31), 2**31, (rows, -(-width // 32)), generator=rng).int()
    wanted = reference.apply_grammar_bitmask(logits.clone(), bitmask)
    assert torch.equal(kernels.apply_grammar_bitmask(logits.clone(), bitmask), wanted)
    masked = kernels.sample_filter(wanted, top_k, top_p, min_p)  # on top of a grammar's -inf
    assert torch.equal(masked, reference.sample_filter(wanted, top_k, top_p, min_p))
    coarse = (logits * 2).round() / 2  # many ties
    for setting in ((torch.full((rows,), 5), None, None), (None, torch.full((rows,), 0.7), None)):
        got, want = kernels.sample_filter(coarse, *setting), reference.sample_filter(coarse, *setting)
        assert torch.equal(got, want)


def check_linear(kernels: Kernels, dtype: torch.dtype, quantization: Any) -> None:
    for outputs, inputs in ((1, 32), (100, 96), (64, 576)):
        weight, bias = torch.randn(outputs, inputs).to(dtype) / inputs**0.5, torch.randn(outputs).to(dtype)
        for with_bias in (None, bias):
            packed = kernels.PackedLinear(weight, with_bias, quantization=quantization)
            plain = reference.PackedLinear(
                weight.float(), None if with_bias is None else bias.float(), quantization=quantization
            )
            for rows in (0, 1, 2, 3, 5, 70):
                x = torch.randn(rows, inputs).to(dtype)
                assert_close(packed(x), plain(x.float()).to(dtype), f"{outputs} x {inputs}, {rows} rows, {quantization}")
            out = torch.empty(70, outputs, dtype=dtype)
            assert packed(x, out=out) is out
            assert_close(out, plain(x.float()).to(dtype))
            some = torch.tensor([outputs - 1, 0, outputs // 2, 0], dtype=torch.int32)
            assert_close(packed.take_rows(some), plain.take_rows(some).to(dtype))
            assert packed.take_rows(some[:0]).shape == (0, inputs)


def check_all(kernels: Kernels, small: bool = False) -> None:
    torch.manual_seed(0)
    check_attention_edges(kernels)
    check_sampling(kernels, 0, 100)
    check_sampling(kernels, 3 if small else 40, 1100 if small else 5000)
    for dtype in DTYPES:
        check_attention(kernels, dtype, small)
        check_norm(kernels, dtype)
        check_rotary_and_write(kernels, dtype)
        check_activation(kernels, dtype)
        for quantization in (None, "int8", "int4"):
            check_linear(kernels, dtype, quantization)
