"""Damaged checkpoints by the thousand: each ends as a model or as a MappingError, soon and in little memory.

`python -m parity_tests fuzz 50000` makes so many from whole ones, input i always the same: bytes changed, cut, put in and
swapped; numbers made absurd; JSON changed by its structure. What ends otherwise is kept, and named with its number.
"""

import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import gguf
import torch

from parity_tests.tiny_checkpoints import (
    CONFIG,
    DEEPSEEK,
    tensors_of,
    write_config,
    write_folder,
    write_gguf,
    write_shards,
)
from weight_mapping import MappingError, load

SECONDS, MEGABYTES, LONGEST = 5.0, 300, 400
"""What an input may take at most: of the processor, so that a busy machine changes nothing; of address space beyond what the
process has; and a message, of characters."""

Pick = random.Random
Damage = Callable[[bytes, Pick], bytes]


def _bytes_changed(data: bytes, pick: Pick) -> bytes:
    out = bytearray(data)
    near = pick.choice([len(out), len(out), 64, 600])  # the lists are in front
    for _ in range(pick.choice([1, 1, 2, 5, 20])):
        if out:
            out[pick.randrange(min(near, len(out)))] = pick.choice([0, 0xFF, 0x80, pick.randrange(256)])
    return bytes(out)


def _cut(data: bytes, pick: Pick) -> bytes:
    start, end = sorted(pick.randrange(len(data) + 1) for _ in range(2))
    return pick.choice([data[:end], data[start:], data[:start] + data[end:]])


def _put_in(data: bytes, pick: Pick) -> bytes:
    at = pick.randrange(len(data) + 1)
    start = pick.randrange(len(data) + 1)
    more = pick.choice(
        [pick.randbytes(pick.randrange(1, 40)), data[start : start + 200], b"[" * 5000, b"\0" * 5000, b"9" * 5000]
    )
    return data[:at] + more + data[at:]


def _numbers_absurd(data: bytes, pick: Pick) -> bytes:
    """A field of 32 or 64 bits somewhere in front."""
    kind = pick.choice(["<I", "<Q", ">I", ">Q"])
    size = struct.calcsize(kind)
    values = [0, 1, 2, 7, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1]
    at = pick.randrange(max(1, min(len(data) - size, pick.choice([40, 400, 4000, len(data)]))))
    return data[:at] + struct.pack(kind, pick.choice(values) % (1 << (8 * size))) + data[at + size :]


BYTES: tuple[Damage, ...] = (_bytes_changed, _bytes_changed, _cut, _put_in, _numbers_absurd)

ODD: list[Any] = [
    *[
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        1.5,
        1e400,
        -1e400,
        float("nan"),
        1e-320,
        10**6,
        2**31,
        2**53,
        2**63,
        10**30,
    ],
    *["", "x", "silu", "llama", "deepseek_v3", "\ud800", "../x", "x" * 300, "x" * 5000, "é\n\r\u2028"],
    *[[], {}, [[]], [1.0] * 4, [0] * 100, {"rope_type": "yarn", "factor": 4.0}, {"type": "longrope"}, {"": {}}],
]


def _structure(value: Any, pick: Pick) -> Any:
    """One thing of it is another, is gone, is double, or lies deeper."""
    if isinstance(value, dict) and value and pick.random() < 0.9:
        key = pick.choice(list(value))
        deed = pick.randrange(6)
        if deed < 2:
            return {**value, key: _structure(value[key], pick)}
        if deed == 2:
            return {name: each for name, each in value.items() if name != key}
        if deed == 3:
            return {
                pick.choice([key + "x", "", "\ud800", key.upper()]) if name == key else name: e
                for name, e in value.items()
            }
        return {**value, key: value[pick.choice(list(value))]} if deed == 4 else {**value, key: pick.choice(ODD)}
    if isinstance(value, list) and value and pick.random() < 0.7:
        at = pick.randrange(len(value))
        return [*value[:at], _structure(value[at], pick), *value[at + pick.randrange(2) :]]
    if type(value) is int and pick.random() < 0.5:
        return pick.choice(
            [value + 1, value - 1, 2 * value, -value, float(value), str(value), value * 10**6, bool(value)]
        )
    return pick.choice(ODD)


def _json(data: bytes, pick: Pick) -> bytes:
    if pick.random() < 0.25:
        return pick.choice(BYTES)(data, pick)
    value = json.loads(data)
    for _ in range(pick.choice([1, 1, 1, 2, 4])):
        value = _structure(value, pick)
    text = json.dumps(value)
    if pick.random() < 0.05:
        depth = pick.choice([10, 1000, 100_000])
        text = text[:-1] + ', "deep": ' + "[" * depth + "]" * depth + "}"
    return text.encode(pick.choice(["utf-8"] * 30 + ["utf-16", "utf-8-sig"]))


def _header(data: bytes, pick: Pick) -> bytes:
    """The JSON in front of a safetensors file, its length put right; or anything."""
    if pick.random() < 0.4:
        return pick.choice(BYTES)(data, pick)
    size = int.from_bytes(data[:8], "little")
    header = _json(data[8 : 8 + size], pick)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _any(data: bytes, pick: Pick) -> bytes:
    for _ in range(pick.choice([1, 1, 1, 3])):
        data = pick.choice(BYTES)(data, pick)
    return data


def _old_bin(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    return _bin(folder, config, tensors, _use_new_zipfile_serialization=False)


def _bin(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], **how: Any) -> Path:
    write_config(folder, config)
    torch.save(dict(tensors), folder / "pytorch_model.bin", **how)
    return folder


def _gguf(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    folder.mkdir()
    return write_gguf(folder / "model.gguf", config, tensors, quantise=gguf.GGMLQuantizationType.Q8_0)


_WIDE = {
    **CONFIG,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
}  # Q8_0 has blocks of 32

KINDS: dict[str, tuple[Callable[..., Path], Mapping[str, Any], str, Damage]] = {
    "safetensors": (write_folder, CONFIG, "model.safetensors", _header),
    "config": (write_folder, CONFIG, "config.json", _json),
    "config-deepseek": (write_folder, DEEPSEEK, "config.json", _json),
    "index": (write_shards, CONFIG, "model.safetensors.index.json", _json),
    "shard": (write_shards, CONFIG, "model-00002-of-00003.safetensors", _header),
    "bin": (_bin, CONFIG, "pytorch_model.bin", _any),
    "bin-old": (_old_bin, CONFIG, "pytorch_model.bin", _any),
    "gguf": (_gguf, _WIDE, "model.gguf", _any),
}
"""How a whole one is made, the file in it that is damaged, and how."""


class _TooLong(BaseException):
    """Not an Exception, so that nobody on the way takes it for something else."""


@contextmanager
def _limited() -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise _TooLong(f"takes more than {SECONDS} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _outcome(path: Path) -> str:
    """ "a model", "refused", or what went wrong."""
    try:
        with _limited():
            load(path)
        return "a model"
    except MappingError as error:
        text = str(error)
        if "\n" in text or "\r" in text or len(text) > LONGEST:
            return f"says something of {len(text)} characters or several lines: {text[:200]!r}"
        text.encode()
        return "refused"
    except BaseException as error:  # whatever it is, it is what is looked for
        if isinstance(error, KeyboardInterrupt):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:150]}"


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 if sys.platform != "darwin" else 1024)


def run(n: int, keep: Path, first: int = 0) -> int:
    """Load `n` damaged checkpoints, and print what became of them. Returns how many ended as none may."""
    torch.set_num_threads(1)
    made = Path(tempfile.mkdtemp())
    try:
        wholes = {}
        for kind, (write, config, file, _) in KINDS.items():
            path = write(made / kind, config, tensors_of(config))
            assert _outcome(path) == "a model"
            wholes[kind] = (path, path if path.is_file() else path / file)
        return _run(range(first, first + n), wholes, keep)
    finally:
        shutil.rmtree(made)


def _run(numbers: range, wholes: Mapping[str, tuple[Path, Path]], keep: Path) -> int:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEGABYTES * 2**20, resource.RLIM_INFINITY))
    content = {kind: file.read_bytes() for kind, (_, file) in wholes.items()}
    outcomes: Counter[tuple[str, str]] = Counter()
    wrong, slowest, began, memory = 0, (0.0, 0), time.monotonic(), _resident()
    before = memory
    for done, number in enumerate(numbers, start=1):
        kind = list(KINDS)[number % len(KINDS)]
        path, file = wholes[kind]
        file.write_bytes(KINDS[kind][3](content[kind], Pick(number)))
        start = time.process_time()
        outcome = _outcome(path)
        slowest = max(slowest, (time.process_time() - start, number))
        if outcome in ("a model", "refused"):
            outcomes[kind, outcome] += 1
        else:
            wrong += 1
            outcomes[kind, "WRONG"] += 1
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, keep / f"{number}-{file.name}")
            print(f"input {number} ({kind}): {outcome}; kept as {keep / f'{number}-{file.name}'}", flush=True)
        file.write_bytes(content[kind])
        if done % 1000 == 0:
            print(
                f"{done} of {len(numbers)}, {time.monotonic() - began:.0f} s, {wrong} wrong",
                file=sys.stderr,
                flush=True,
            )
    memory = _resident() - before
    for kind in KINDS:
        print(f"{kind:16} " + "  ".join(f"{outcomes[kind, each]:6} {each}" for each in ("a model", "refused", "WRONG")))
    took = time.monotonic() - began
    print(f"slowest {slowest[0]:.2f} s (input {slowest[1]}), memory grew by {memory / 1024:.0f} MB, {took:.0f} s")
    return wrong
