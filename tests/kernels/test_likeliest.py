"""The likeliest tokens and their probabilities: the CPU's search by parts against the whole row."""

from __future__ import annotations

import pytest
import torch
from nbengine_kernels import cpu, reference
from nbengine_kernels.cpu.sampling import PART


@pytest.mark.parametrize("width", [5, 63, 64, PART - 1, PART, PART + 1, 3 * PART + 70, 49152])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_it_finds_what_a_search_of_the_whole_row_finds(rows: int, width: int) -> None:
    logits = torch.randn(rows, width, generator=torch.Generator().manual_seed(width)) * 4
    ids, probs = cpu.likeliest(logits, 5)
    wanted_ids, wanted_probs = reference.likeliest(logits, 5)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(probs, wanted_probs, rtol=1e-5, atol=1e-7)


def test_the_largest_may_be_neighbours_equal_or_few() -> None:
    logits = torch.full((3, 2 * PART), -torch.inf)
    logits[0, 700:705] = torch.tensor([1.0, 5.0, 3.0, 4.0, 2.0])
    logits[1, [3, PART + 9]] = 2.0
    logits[2] = 0.0
    ids, probs = cpu.likeliest(logits, 4)
    assert ids[0].tolist() == [701, 703, 702, 704] and ids[1, :2].tolist() == [3, PART + 9]
    assert ids[2].tolist() == [0, 1, 2, 3]  # of equal ones the first comes first
    assert probs[1].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0])


def test_a_row_of_no_numbers_still_names_tokens() -> None:
    ids, _ = cpu.likeliest(torch.full((2, 700), torch.nan), 3)
    assert ids.min() >= 0 and ids.max() < 700


def test_another_dtype_or_stride_goes_to_the_reference() -> None:
    logits = torch.randn(4, 900)
    for strange in (logits.double(), logits[:, ::3]):
        assert torch.equal(cpu.likeliest(strange, 2)[0], reference.likeliest(strange, 2)[0])
