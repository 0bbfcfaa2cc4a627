"""Memory for what stays long."""

import pytest
import torch
from nbengine_kernels import pages

SMALL = (3, 5)


@pytest.mark.parametrize("shape", [(), (0, 4), SMALL, (pages._CHUNK // 4 + 1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
def test_zeros_of_the_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = pages.own_pages(shape, dtype)
    assert made.shape == shape and made.dtype == dtype and made.is_contiguous()
    assert not made.any()
    made.fill_(1)


def test_tensors_do_not_overlap_and_are_aligned() -> None:
    many = [pages.own_pages(SMALL, torch.float32) for _ in range(20)]
    for i, tensor in enumerate(many):
        tensor.fill_(i)
    assert [tensor.unique().tolist() for tensor in many] == [[i] for i in range(20)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in many)


def test_a_full_chunk_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_CHUNK", 256)
    monkeypatch.setattr(pages, "_chunk", None)
    many = [pages.own_pages((30,), torch.float32) for _ in range(5)]  # two a chunk
    for i, tensor in enumerate(many):
        tensor.fill_(i)
    assert [tensor[0].item() for tensor in many] == [0, 1, 2, 3, 4]
