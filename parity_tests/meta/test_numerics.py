"""The policy on rounding holds while the tests run."""

import torch


def test_float32_is_float32_and_half_precision_is_added_up_in_float32() -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction


def test_tiny_models_are_computed_on_one_core() -> None:
    assert torch.get_num_threads() == 1
