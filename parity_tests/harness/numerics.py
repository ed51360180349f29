"""The one place that says with what freedom numbers are computed, on both sides alike: as little as there is.

No seeds: nothing is drawn. Inputs and weights come from names (`fixtures/values.py`), and dropout is off.
"""

import os

import torch

CORES = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
"""Of this process: cores are shared out among xdist's workers."""


def pin(device: str) -> None:
    """float32 is float32 (no TF32), half precision is added up in float32, and CUDA's kernels are deterministic ones where
    there are any; an operation without one warns.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it before its first call
        torch.use_deterministic_algorithms(True, warn_only=True)


def share(cores: int) -> None:
    """Compute on so many cores: one for tiny models, since handing their work on costs more than it saves, and much more on
    a busy machine. The number can change how sums round, and is the same for both sides.
    """
    torch.set_num_threads(cores)
