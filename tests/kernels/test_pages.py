"""Memory for what stays long."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from nbengine_kernels import pages

SMALL = (3, 5)


@pytest.mark.parametrize("shape", [(), (0, 4), SMALL, (pages._CHUNK // 4 + 1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
@pytest.mark.parametrize("share", [False, True])
def test_zeros_of_the_shape(shape: tuple[int, ...], dtype: torch.dtype, share: bool) -> None:
    made = pages.own_pages(shape, dtype, share=share)
    assert made.shape == shape and made.dtype == dtype and made.is_contiguous()
    assert not made.any()
    made.fill_(1)


def test_tensors_do_not_overlap_and_are_aligned() -> None:
    many = [pages.own_pages(SMALL, torch.float32, share=True) for _ in range(20)]
    for i, tensor in enumerate(many):
        tensor.fill_(i)
    assert [tensor.unique().tolist() for tensor in many] == [[i] for i in range(20)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in many)


def test_a_full_chunk_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_CHUNK", 256)
    monkeypatch.setattr(pages, "_chunk", None)
    many = [pages.own_pages((30,), torch.float32, share=True) for _ in range(5)]  # two a chunk
    for i, tensor in enumerate(many):
        tensor.fill_(i)
    assert [tensor[0].item() for tensor in many] == [0, 1, 2, 3, 4]


def test_threads_get_parts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models may be loaded at once."""
    monkeypatch.setattr(pages, "_chunk", None)
    with ThreadPoolExecutor(8) as pool:
        many = list(pool.map(lambda i: pages.own_pages((16,), torch.float32, share=True).fill_(i), range(400)))
    assert [tensor.unique().tolist() for tensor in many] == [[i] for i in range(400)]
