"""Write a sparse network to a file and read it back: dense, sparse (values and positions), CSR, ONNX. No pickle.

Every writer reads its own file again and compares before it is done; a file that differs is removed. Every reader takes
a file for what anybody could have written: sizes are checked before memory is taken, positions before they are used.
"""

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rewire.extras import need
from rewire.resize import resize, sizes
from rewire.select import unwrap

FORMAT = "rewire-sparse-1"
MASK = "_mask"
_VALUES, _COLUMNS, _ROWS = ".sparse_values", ".sparse_columns", ".sparse_rows"
_LARGEST = 2**40  # elements of a dense tensor that a header may ask for: far more than any network has


def to_csr(model: nn.Module) -> dict[str, Tensor]:
    """Each masked weight as a ``torch.sparse_csr`` matrix: a row per output, by topology (an active zero is stored)."""
    state = unwrap(model).state_dict()
    found = {}
    for name, mask in _masks(state).items():
        parts = _by_row(state[name].detach().cpu(), mask.cpu())
        found[name] = _csr(*parts, (len(mask), mask[0].numel()))
    return found


def save_dense(model: nn.Module, path: Path) -> None:
    """The ``state_dict`` as safetensors, zeros in place and masks left away, for any tool that reads safetensors."""
    state = {name: tensor for name, tensor in _plain(model).items() if not name.endswith("weight" + MASK)}
    metadata = {"sizes": json.dumps(sizes(unwrap(model)))}
    _checked(path, lambda: _write(path, state, metadata), lambda: _compare(state, _read(path)[0]))


def save_sparse(model: nn.Module, path: Path) -> None:
    """Values and positions of the weights that exist; all else as it is. ``load_sparse`` reads it back."""
    state = _plain(model)
    masks, out, shapes = _masks(state), dict[str, Tensor](), dict[str, list[int]]()
    for name, tensor in state.items():
        if name in masks:
            rows, columns, values = _by_row(tensor, masks[name])
            out[name + _VALUES] = values
            out[name + _COLUMNS] = _narrow(columns, tensor[0].numel())
            out[name + _ROWS] = _narrow(rows, len(values) + 1)
            shapes[name] = list(tensor.shape)
        elif name.removesuffix(MASK) not in masks:
            out[name] = tensor
    metadata = {"format": FORMAT, "shapes": json.dumps(shapes), "sizes": json.dumps(sizes(unwrap(model)))}
    _checked(path, lambda: _write(path, out, metadata), lambda: _compare(state, load_sparse(path)))


def load_sparse(path: str | Path, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The ``state_dict`` of a file that ``save_sparse`` or ``save_dense`` wrote; with a model, loaded into it as well.

    A model that has no masks is given none. One of other sizes (the file holds a shrunk network) is resized first.
    A damaged or malicious file gets a ``ValueError`` that names it; nothing in it is executed.
    """
    path = Path(path)
    tensors, metadata = _read(path)
    try:
        state = _unpacked(tensors, json.loads(metadata.get("shapes", "{}")))
        asked = json.loads(metadata.get("sizes", "{}"))
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} is not a sparse network: {_first_line(error)}. Write it anew") from error
    if model is not None:
        inner = unwrap(model)
        wanted = inner.state_dict()
        keep = {name: one for name, one in state.items() if name in wanted or not name.endswith("weight" + MASK)}
        try:
            resize(inner, keep, asked)
            inner.load_state_dict(keep)
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{path} is of another model than {type(inner).__name__}: {error}") from error
    return state


def save_csr(model: nn.Module, path: Path) -> None:
    """CSR matrices in a NumPy archive: ``NAME/data``, ``NAME/indices``, ``NAME/indptr``, ``NAME/shape`` per layer."""
    matrices = to_csr(model)
    if not matrices:
        raise ValueError("the model has no masked weight: there is nothing to write as CSR. Use --to dense")
    arrays: dict[str, Any] = {}
    for name, matrix in matrices.items():
        arrays[f"{name}/data"] = matrix.values().float().numpy()
        arrays[f"{name}/indices"] = matrix.col_indices().int().numpy()
        arrays[f"{name}/indptr"] = matrix.crow_indices().int().numpy()
        arrays[f"{name}/shape"] = np.array(matrix.shape, dtype=np.int64)

    def write() -> None:
        with path.open("wb") as file:  # np.savez would add .npz to the name
            np.savez_compressed(file, **arrays)

    def compare() -> None:
        back = load_csr(path)
        _compare({n: m.to_dense().float() for n, m in matrices.items()}, {n: m.to_dense() for n, m in back.items()})

    _checked(path, write, compare)


def load_csr(path: str | Path) -> dict[str, Tensor]:
    """The matrices of ``save_csr``. SciPy takes the same arrays: ``csr_array((data, indices, indptr), shape)``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [key.removesuffix("/data") for key in file.files if key.endswith("/data")]
            if not names:
                raise ValueError("it holds no arrays NAME/data")
            kinds = ("indptr", "indices", "data")
            parts = {n: _three(torch.from_numpy(file[f"{n}/{k}"]) for k in kinds) for n in names}
            shapes = {n: tuple(file[f"{n}/shape"].tolist()) for n in names}
        return {n: _csr(*parts[n], shapes[n]) for n in names}
    except Exception as error:  # zip, zlib and numpy raise a dozen kinds; none of them runs what is in the file
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} does not hold CSR matrices: {_first_line(error)}. Write it anew") from error


def save_onnx(model: nn.Module, path: Path, example: Tensor, tolerance: float = 1e-4) -> None:
    """ONNX, checked with ONNX Runtime on the example and on random inputs; the batch may be of any size."""
    need("onnx", "onnx", "onnxscript", "onnxruntime")
    import onnxruntime  # imported here: only this export needs it

    model = unwrap(model)
    training = model.training
    model.eval()
    try:
        batch = torch.export.Dim("batch")
        two = example if len(example) > 1 else example.expand(2, *example.shape[1:]).contiguous()
        with warnings.catch_warnings(), _quiet("torch.onnx"):
            warnings.simplefilter("ignore")  # the exporter calls parts of torch that torch deprecates
            program = torch.export.export(model, (two,), dynamic_shapes=({0: batch},), strict=False)
            exported = torch.onnx.export(program, (two,), dynamo=True, verbose=False, optimize=True)
        assert exported is not None

        def compare() -> None:
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            generator = torch.Generator().manual_seed(0)
            for x in (example, torch.randn(3, *example.shape[1:], generator=generator)):
                with torch.no_grad():
                    ours = model(x)
                theirs = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
                apart = float((ours - theirs).abs().max()) / max(float(ours.abs().max()), 1e-3)
                if not apart <= tolerance:
                    raise ValueError(f"ONNX Runtime computes something else: {apart:.1e} apart, relative")

        _checked(path, lambda: exported.save(str(path)), compare)
    finally:
        model.train(training)


def _unpacked(tensors: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """Dense weights and their masks from values and positions, each checked before it is used."""
    state = {n: t for n, t in tensors.items() if not n.endswith((_VALUES, _COLUMNS, _ROWS))}
    for name, listed in shapes.items():
        shape = [int(size) for size in listed]
        values, columns, rows = (tensors[name + part] for part in (_VALUES, _COLUMNS, _ROWS))
        if (
            not shape
            or min(shape) < 0
            or math.prod(shape) > _LARGEST
            or values.dim() != 1
            or len(columns) != len(values)
        ):
            raise ValueError(f"{name} has shape {shape} and {tuple(values.shape)} values")
        pointers, columns = rows.to(torch.int64), columns.to(torch.int64)
        width = math.prod(shape[1:])
        sound = len(pointers) == shape[0] + 1 and int(pointers[0]) == 0 and int(pointers[-1]) == len(values)
        if not sound or bool((pointers.diff() < 0).any()) or bool(((columns < 0) | (columns >= width)).any()):
            raise ValueError(f"{name} has positions outside of its shape {shape}")
        at = torch.repeat_interleave(torch.arange(shape[0]), pointers.diff()) * width + columns
        if bool((at.diff() <= 0).any()):
            raise ValueError(f"{name} names a position twice or out of order")
        if shape[0] * width > 4096 * (len(values) + 4096) + sum(t.numel() for t in tensors.values()) * 64:
            raise ValueError(f"{name} asks for {shape} with {len(values)} values: no network is that sparse")
        mask = torch.zeros(math.prod(shape), dtype=torch.bool)
        dense = torch.zeros(math.prod(shape), dtype=values.dtype)
        mask[at], dense[at] = True, values
        state[name], state[name + MASK] = dense.view(shape), mask.view(shape)
    return state


def _by_row(weight: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row pointers, columns and values, a row per output; ``to_sparse_csr`` would lose active zeros."""
    flat = mask.reshape(len(mask), -1).bool()
    rows = torch.cat([torch.zeros(1, dtype=torch.int64), flat.sum(1).cumsum(0)])
    return rows, flat.nonzero()[:, 1].contiguous(), weight.reshape(flat.shape)[flat]


def _csr(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, ...]) -> Tensor:
    """A ``torch.sparse_csr`` matrix whose positions were checked."""
    with torch.sparse.check_sparse_tensor_invariants(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(rows, columns, values, size=size)


def _three(tensors: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns, values = tensors
    return rows, columns, values


def _narrow(index: Tensor, below: int) -> Tensor:
    """16 bits where they are enough, else 32, else 64."""
    kinds = ((2**16, torch.uint16), (2**31, torch.int32))
    return index.to(next((kind for limit, kind in kinds if below <= limit), torch.int64))


def _masks(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removesuffix(MASK): m for n, m in state.items() if n.endswith("weight" + MASK)}


def _plain(model: nn.Module) -> dict[str, Tensor]:
    """The state on the CPU, each tensor with memory of its own; values outside the masks are refused."""
    state = {n: t.detach().cpu().contiguous().clone() for n, t in unwrap(model).state_dict().items()}
    for name, mask in _masks(state).items():
        if bool((state[name].ne(0) & ~mask).any()):
            raise ValueError(f"{name} has values where its mask says that there is no weight: set them to zero first")
    return state


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    need("lab", "safetensors")
    from safetensors.torch import save_file  # imported here: the library itself needs torch and numpy only

    save_file(tensors, path, metadata)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    need("lab", "safetensors")
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, or is not a file")
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError, AttributeError) as error:
        raise ValueError(f"{path} is not a safetensors file: {_first_line(error)}. Write it anew") from error


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """The exporter logs what is not installed and not needed."""
    level = logging.getLogger(logger).level
    logging.getLogger(logger).setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.getLogger(logger).setLevel(level)


def _checked(path: Path, write: Callable[[], None], compare: Callable[[], None]) -> None:
    """Write, read back, compare; what is wrong does not stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write()
        compare()
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _compare(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    for name in before.keys() | after.keys():
        if name not in before or name not in after or not _identical(before[name], after[name]):
            raise ValueError(f"what was read back differs from what was written, in {name}")


def _identical(one: Tensor, other: Tensor) -> bool:
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and bool(((one == other) | ((one != one) & (other != other))).all())


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
