"""What a safetensors file holds, from its header alone: no tensor is read, and torch is not needed.

The file is untrusted. Its header is bounded, and every tensor must lie inside the file with the bytes that its
shape needs, so a truncated copy is found before anything is read from it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, TypeAdapter, ValidationError

from app.probe_model.errors import ProbeModelError
from app.probe_model.manifest import DType

MAX_HEADER_BYTES = 16 * 2**20
DTYPES: dict[str, DType] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Element types that a probe model can keep, by their names in the file."""
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_METADATA = "__metadata__"

_Count = Annotated[StrictInt, Field(ge=0, le=2**50)]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file.

    Parameters
    ----------
    file : Path
        Where it is.
    dtype : str
        Element type by its name in the file, such as ``BF16``.
    shape : tuple of int
        Rows first.
    nbytes : int
        Its size.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class _Entry(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    dtype: Annotated[str, Field(max_length=16)]
    shape: Annotated[tuple[_Count, ...], Field(max_length=8)]
    data_offsets: tuple[_Count, _Count]


_ENTRIES = TypeAdapter(dict[str, _Entry])


def read_header(file: Path) -> dict[str, TensorEntry]:
    """List the tensors of a safetensors file.

    Raises
    ------
    ProbeModelError
        The file cannot be read, is no safetensors file, or ends before a tensor does; the file, and the tensor
        where there is one, are named.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ProbeModelError(file.name, "is no safetensors file, or is truncated within its header")
            content = handle.read(length)
    except OSError as error:
        raise ProbeModelError(file.name, f"cannot be read ({error.strerror})") from error
    entries = _parse(file, content)
    for key, entry in entries.items():
        _check_place(f"{file.name}: {key[:120]}", entry, size - 8 - length)
    return {
        key: TensorEntry(file, entry.dtype, entry.shape, entry.data_offsets[1] - entry.data_offsets[0])
        for key, entry in entries.items()
    }


def _parse(file: Path, content: bytes) -> dict[str, _Entry]:
    try:
        document = json.loads(content)
        if isinstance(document, dict):
            document.pop(_METADATA, None)
        return _ENTRIES.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ": ".join([file.name, *map(str, first["loc"][:1])])[:160]
        raise ProbeModelError(where, f"the header is wrong: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ProbeModelError(file.name, "is no safetensors file: its header is not JSON") from error


def _check_place(where: str, entry: _Entry, data_bytes: int) -> None:
    begin, end = entry.data_offsets
    if end > data_bytes:
        raise ProbeModelError(where, f"the file is truncated, {end - data_bytes} bytes before the tensor's end")
    item = _ITEM_BYTES.get(entry.dtype)
    if begin > end or (item is not None and end - begin != math.prod(entry.shape) * item):
        raise ProbeModelError(where, "the header is wrong: the tensor's bytes do not agree with its shape")
