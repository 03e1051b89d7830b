"""Records calls of the native kernels, with the memory that they read and write, for ``replay.cpp``."""

import ctypes
import struct
from dataclasses import dataclass

import numpy as np
import torch

from rewire.kernels.batch.plan import Plan

_LIBC = ctypes.CDLL(None)
_LIBC.malloc_usable_size.argtypes, _LIBC.malloc_usable_size.restype = [ctypes.c_void_p], ctypes.c_size_t


@dataclass
class Block:
    """Memory that a call uses: what it holds before and after, and where it holds the addresses of other blocks."""

    address: int
    before: bytes
    pointers: list[tuple[int, int]]
    after: bytes = b""


@dataclass
class Call:
    """One call: its blocks, and for each argument whether it is the number of a block, and its value."""

    name: str
    blocks: list[Block]
    limit: float
    arguments: list[tuple[bool, int]]

    def encode(self) -> bytes:
        """The call as ``replay.cpp`` reads it."""
        text = struct.pack("q", len(self.name)) + self.name.encode() + struct.pack("q", len(self.blocks))
        for block in self.blocks:
            numbers = [number for pair in block.pointers for number in pair]
            text += struct.pack("q", len(block.before)) + block.before
            text += struct.pack(f"q{len(numbers)}q", len(block.pointers), *numbers)
        words = [int(word) for pair in self.arguments for word in pair]
        return text + struct.pack("f", self.limit) + struct.pack(f"q{len(words)}q", len(self.arguments), *words)


class Recorder:
    """Stands in for a library (``library.use``) and records every call on its way there."""

    def __init__(self, native, monkeypatch):
        self.native, self.calls = native, []
        self.sizes = {}
        data_ptr, keep = torch.Tensor.data_ptr, Plan._keep

        def noted_data_ptr(tensor):
            storage = tensor.untyped_storage()
            address = data_ptr(tensor)
            # A row of a matrix is a block of its own; anything else may be read to the end of its memory.
            row = tensor.dim() == 1 and tensor.is_contiguous()
            self.sizes[address] = tensor.nbytes if row else storage.nbytes() - (address - storage.data_ptr())
            return address

        def noted_keep(plan, array):
            address = keep(plan, array)
            self.sizes[address] = plan._arrays[-1].nbytes
            return address

        monkeypatch.setattr(torch.Tensor, "data_ptr", noted_data_ptr)
        monkeypatch.setattr(Plan, "_keep", noted_keep)

    def __getattr__(self, name):
        function = getattr(self.native, name)

        def recorded(*arguments):
            call = self._prepare(name, arguments, function.argtypes)
            result = function(*arguments)
            for block in call.blocks:
                block.after = ctypes.string_at(block.address, len(block.before))
            self.calls.append(call)
            return result

        return recorded

    def _prepare(self, name, arguments, types):
        blocks, numbers, limit, encoded = [], {}, 0.0, []

        def block_at(address, size, structure=None):
            if address not in numbers:
                numbers[address] = len(blocks)
                blocks.append(Block(address, ctypes.string_at(address, size), []))
                for offset, target in _pointers(structure):
                    number = block_at(target, self._size(target))
                    blocks[numbers[address]].pointers.append((offset, number))
            return numbers[address]

        for argument, kind in zip(arguments, types, strict=True):
            if isinstance(argument, ctypes.Structure | ctypes.Array):
                encoded.append((True, block_at(ctypes.addressof(argument), ctypes.sizeof(argument), argument)))
            elif kind is ctypes.c_float:
                limit = argument
            elif kind is ctypes.c_void_p and argument:
                encoded.append((True, block_at(argument, self._size(argument))))
            else:
                encoded.append((False, int(argument or 0)))
        return Call(name, blocks, limit, encoded)

    def _size(self, address):
        """Bytes at an address: of a tensor or a plan's array, else of numpy's own memory."""
        return self.sizes.get(address) or _LIBC.malloc_usable_size(address)


def _pointers(structure, base=0):
    """Offset and address of every array that a structure (or array of structures) points to."""
    if isinstance(structure, ctypes.Array):
        for i, element in enumerate(structure):
            yield from _pointers(element, base + i * ctypes.sizeof(element))
    elif structure is not None:
        for name, kind in structure._fields_:
            offset, value = base + getattr(type(structure), name).offset, getattr(structure, name)
            if isinstance(value, ctypes.Structure):
                yield from _pointers(value, offset)
            elif kind is ctypes.c_void_p and value:
                yield offset, value


def differences(calls, results, tolerance):
    """The names of calls whose results (the output of ``replay.cpp``) differ from the recorded ones."""
    place, differing = 0, set()
    for call in calls:
        for block in call.blocks:
            size = len(block.after)
            replayed, place = results[place : place + size], place + size
            if not block.pointers and not _close(block.after, replayed, tolerance):
                differing.add(call.name)
    assert place == len(results)
    return differing


def _close(expected, replayed, tolerance):
    """The same bits, or floats that differ in proportion to the largest of the block."""
    whole = len(expected) // 4 * 4
    one, other = (np.frombuffer(text[:whole], np.float32) for text in (expected, replayed))
    same = one.view(np.int32) == other.view(np.int32)
    if same.all():
        return True
    return bool(np.allclose(one[~same], other[~same], tolerance, tolerance * np.abs(one[~same]).max()))
