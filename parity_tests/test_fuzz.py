"""2,000 damaged checkpoints: each is refused in one sentence, or loads. `make fuzz N=50000` tries more."""

import subprocess
import sys
from pathlib import Path


def test_damaged_checkpoints(tmp_path: Path) -> None:
    # in a process of its own, whose memory is limited
    command = [sys.executable, "-m", "parity_tests", "fuzz", "2000", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
