"""Write a sparse network to a file and read it back: dense, sparse (values and positions), CSR, ONNX. No pickle.

Every writer reads its own file again and compares before the file gets its name: tensor by tensor, and given an example
also what the network computes. Every reader takes a file for what anybody could have written: sizes are checked before
memory is taken, positions before they are used.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rewire._extras import need
from rewire.io.csr import by_row, compress, csr, decompress
from rewire.io.files import first_line, read_tensors, write_checked, write_tensors
from rewire.model.resize import resize, sizes
from rewire.model.select import unwrap
from rewire.model.state_names import mask_name, masks_in, topology_names, without_masks
from rewire.nn.packed import Packed
from rewire.stores.convert import pack_masked, to_dense, to_masked, unpack

FORMAT = "rewire-sparse-1"
TOLERANCE = 1e-4  # relative, between what two runtimes compute in float32


def to_csr(model: nn.Module) -> dict[str, Tensor]:
    """Each sparse weight as a ``torch.sparse_csr`` matrix by topology: an active zero is stored.

    A row for each index of the weight's first dimension, which are the outputs of Linear and Conv layers.
    """
    state = to_masked(model).state_dict()
    found = {}
    for name, mask in masks_in(state).items():
        parts = by_row(state[name].detach().cpu(), mask.cpu())
        found[name] = csr(*parts, (len(mask), mask[0].numel()))
    return found


def save_dense(model: nn.Module, path: Path, example: Tensor | None = None) -> None:
    """The ``state_dict`` as safetensors, zeros in place and masks left away, for any tool that reads safetensors."""
    masked = to_masked(model)
    state = without_masks(_plain(masked))
    metadata = {"sizes": json.dumps(sizes(masked))}

    def check(file: Path) -> None:
        back = read_tensors(file)[0]
        _compare(state, back)
        _compare_outputs(masked, back, example)

    write_checked(path, lambda file: write_tensors(file, state, metadata), check)


def save_sparse(model: nn.Module, path: Path, example: Tensor | None = None) -> None:
    """Values and positions of the weights that exist; all else as it is. ``load_sparse`` reads it back."""
    masked = to_masked(model)
    state = _plain(masked)
    out, shapes = compress(state)
    metadata = {"format": FORMAT, "shapes": json.dumps(shapes), "sizes": json.dumps(sizes(masked))}

    def check(file: Path) -> None:
        back = load_sparse(file)
        _compare(state, back)
        _compare_outputs(masked, back, example)

    write_checked(path, lambda file: write_tensors(file, out, metadata), check)


def load_sparse(
    source: str | Path | Mapping[str, Any], model: nn.Module | None = None, *, packed: bool = False
) -> dict[str, Tensor]:
    """The ``state_dict`` of a file that ``save_sparse`` or ``save_dense`` wrote; with a model, loaded into it as well.

    A model that has no masks is given none, and one of other sizes (the file holds a shrunk network) is resized first.
    With ``packed=True``, or if the model is packed, its sparse layers hold the weights that exist and no others.
    A damaged or malicious file gets a ``ValueError`` that names it; nothing in it is executed. What ``rewire shrink -o
    small.pt`` wrote is given as ``torch.load("small.pt", weights_only=True)``.
    """
    name = "this dictionary" if isinstance(source, Mapping) else str(source)
    try:
        tensors, shapes, asked = _opened(source)
        state = decompress(tensors, shapes)
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name} is not a sparse network: {first_line(error)}. Write it anew") from error
    if model is not None:
        inner = unwrap(model)
        packed = packed or any(isinstance(module, Packed) for module in inner.modules())
        try:
            load_into(inner, state, asked, packed)
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{name} is of another model than {type(inner).__name__}: {error}") from error
    return state


def _opened(
    source: str | Path | Mapping[str, Any],
) -> tuple[Mapping[str, Tensor], Mapping[str, Any], Mapping[str, Any]]:
    """The tensors, the shapes of those that are compressed, and the sizes that modules remember."""
    if isinstance(source, Mapping):
        return source["model"], source.get("shapes", {}), source["sizes"]
    tensors, metadata = read_tensors(Path(source))
    return tensors, json.loads(metadata.get("shapes", "{}")), json.loads(metadata.get("sizes", "{}"))


def load_into(model: nn.Module, state: Mapping[str, Tensor], asked: Mapping[str, Any], packed: bool) -> None:
    """Load a ``state_dict`` into a model, which takes its sizes and, if it is to be packed, its topology.

    In a model that is packed already, layers that are masked stay so.
    """
    _refuse_other(model, state)
    were_packed = [module for module in model.modules() if isinstance(module, Packed)]
    unpack(model)
    if packed:
        for name, mask in masks_in(state).items():
            path, _, parameter = name.rpartition(".")
            model.get_submodule(path).register_buffer(mask_name(parameter), mask.clone())
    keep = without_masks(state) | {name: one for name, one in state.items() if name in model.state_dict()}
    resize(model, keep, asked)
    model.load_state_dict(keep)
    if packed:
        pack_masked(model, were_packed or None)


def _refuse_other(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raise before anything is changed, if the names are not those of the model. A bias may be new."""
    own = model.state_dict()
    here, given = own.keys() - topology_names(own), state.keys() - topology_names(state)
    empty = {
        f"{path}.{name}" for path, m in model.named_modules() for name, one in m._parameters.items() if one is None
    }
    for names, sentence in ((here - given, "it has no"), (given - here - empty, "the model has no")):
        if names:
            raise ValueError(f"{sentence} {', '.join(sorted(names)[:3])}{' ...' if len(names) > 3 else ''}")


def save_csr(model: nn.Module, path: Path, example: Tensor | None = None) -> None:
    """CSR matrices in a NumPy archive: ``NAME/data``, ``NAME/indices``, ``NAME/indptr``, ``NAME/shape`` per layer."""
    matrices = to_csr(model)
    if not matrices:
        raise ValueError("the model has no masked weight: there is nothing to write as CSR. Use --to dense")
    arrays: dict[str, Any] = {}
    for name, matrix in matrices.items():
        values = matrix.values()
        arrays[f"{name}/data"] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        arrays[f"{name}/indices"] = matrix.col_indices().int().numpy()
        arrays[f"{name}/indptr"] = matrix.crow_indices().int().numpy()
        arrays[f"{name}/shape"] = np.array(matrix.shape, dtype=np.int64)

    def write(path: Path) -> None:
        with path.open("wb") as file:  # np.savez would add .npz to the name
            np.savez_compressed(file, **arrays)

    def check(file: Path) -> None:
        back = load_csr(file)
        for part in (Tensor.crow_indices, Tensor.col_indices, Tensor.values):
            kind = torch.float64 if part is Tensor.values else torch.int64
            _compare({n: part(m).to(kind) for n, m in matrices.items()}, {n: part(m).to(kind) for n, m in back.items()})
        masked = to_masked(model)
        state = masked.state_dict()
        _compare_outputs(masked, state | {n: m.to_dense().view(state[n].shape) for n, m in back.items()}, example)

    write_checked(path, write, check)


def load_csr(path: str | Path) -> dict[str, Tensor]:
    """The matrices of ``save_csr``. SciPy takes the same arrays: ``csr_array((data, indices, indptr), shape)``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [key.removesuffix("/data") for key in file.files if key.endswith("/data")]
            if not names:
                raise ValueError("it holds no arrays NAME/data")
            found = {}
            for name in names:
                rows, columns, values = (
                    torch.from_numpy(file[f"{name}/{key}"]) for key in ("indptr", "indices", "data")
                )
                found[name] = csr(rows, columns, values, tuple(file[f"{name}/shape"].tolist()))
        return found
    except Exception as error:  # zip, zlib and numpy raise a dozen kinds; none of them runs what is in the file
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} does not hold CSR matrices: {first_line(error)}. Write it anew") from error


def save_onnx(model: nn.Module, path: Path, example: Tensor, tolerance: float = TOLERANCE) -> None:
    """ONNX, checked with ONNX Runtime on the example and on random inputs; the batch may be of any size."""
    need("onnx", "onnx", "onnxscript", "onnxruntime")
    import onnxruntime  # imported here: only this export needs it

    model = to_dense(model).cpu().eval()
    example = example.detach().cpu()
    batch = torch.export.Dim("batch")
    two = example if len(example) > 1 else example.expand(2, *example.shape[1:]).contiguous()
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # the exporter calls parts of torch that torch deprecates
        program = torch.export.export(model, (two,), dynamic_shapes=({0: batch},), strict=False)
        exported = torch.onnx.export(program, (two,), dynamo=True, verbose=False, optimize=True)
    assert exported is not None

    def check(file: Path) -> None:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        generator = torch.Generator().manual_seed(0)
        for x in (example, torch.randn(3, *example.shape[1:], generator=generator, dtype=example.dtype)):
            with torch.no_grad():
                ours = model(x)
            theirs = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
            compare_outputs(ours, theirs, tolerance, "ONNX Runtime")

    write_checked(path, lambda file: exported.save(str(file)), check)


def _plain(masked: nn.Module) -> dict[str, Tensor]:
    """The state on the CPU, each tensor with memory of its own; values outside the masks are refused."""
    state = {n: t.detach().cpu().contiguous().clone() for n, t in masked.state_dict().items()}
    for name, mask in masks_in(state).items():
        if bool((state[name].ne(0) & ~mask).any()):
            raise ValueError(f"{name} has values where its mask says that there is no weight: set them to zero first")
    return state


def _compare(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    for name in before.keys() | after.keys():
        if name not in before or name not in after or not _identical(before[name], after[name]):
            raise ValueError(f"what was read back differs from what was written, in {name}")


def _identical(one: Tensor, other: Tensor) -> bool:
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and bool(((one == other) | ((one != one) & (other != other))).all())


@torch.no_grad()
def _compare_outputs(masked: nn.Module, state: Mapping[str, Tensor], example: Tensor | None) -> None:
    """The network against a dense one that knows only what was read back."""
    if example is None:
        return
    other = to_dense(masked).eval()
    for tensor in other.state_dict().values():
        tensor.zero_()
    other.load_state_dict(without_masks(state))
    training, x = masked.training, example.to(next(other.parameters()).device)
    masked.eval()
    try:
        compare_outputs(masked(x), other(x))
    finally:
        masked.train(training)


def compare_outputs(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5, who: str = "what was read back") -> None:
    """Raise if two runs of a network differ by more than rounding."""
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = float(torch.where(same, 0.0, (ours - theirs).abs()).max()) / max(float(ours.abs().nan_to_num().max()), 1e-3)
    if not apart <= tolerance:
        raise ValueError(f"{who} computes something else: {apart:.1e} apart, relative")


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """The exporter logs what is not installed and not needed."""
    level = logging.getLogger(logger).level
    logging.getLogger(logger).setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.getLogger(logger).setLevel(level)
