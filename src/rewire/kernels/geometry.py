"""What a sparse layer reads and writes: its dense shape, stride, padding, dilation and groups."""

from dataclasses import dataclass

from torch import Tensor

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """A convolution without its weights. A linear layer is a 1x1 convolution on a map of one pixel.

    ``shape``: (outputs, inputs of one group, kernel height, kernel width).
    """

    shape: tuple[int, int, int, int]
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def inputs(self) -> int:
        """Channels read, of all groups."""
        return self.shape[1] * self.groups

    @property
    def taps(self) -> int:
        """Weights of one kernel."""
        return self.shape[2] * self.shape[3]

    @property
    def numel(self) -> int:
        """How many weights a dense layer has."""
        return self.shape[0] * self.shape[1] * self.taps

    def output(self, height: int, width: int) -> Pair:
        """The size of the map that is written.

        >>> Geometry((8, 4, 3, 3), stride=(2, 2), padding=(1, 1)).output(7, 8)
        (4, 4)
        """
        sizes = [
            (size + 2 * pad - far * (kernel - 1) - 1) // step + 1
            for size, pad, far, kernel, step in zip(
                (height, width), self.padding, self.dilation, self.shape[2:], self.stride, strict=True
            )
        ]
        if min(sizes) < 1:
            raise ValueError(
                f"a map of {height}x{width} is too small for a kernel of {self.shape[2]}x{self.shape[3]} "
                f"with padding {self.padding} and dilation {self.dilation}: the output would be {sizes[0]}x{sizes[1]}"
            )
        return sizes[0], sizes[1]

    def numbers(self) -> list[int]:
        """As plain integers, which is what an operator of torch can take."""
        return [*self.shape, *self.stride, *self.padding, *self.dilation, self.groups]

    @classmethod
    def of(cls, numbers: list[int]) -> "Geometry":
        """The geometry that ``numbers`` was made of."""
        shape, (a, b, c, d, e, f), groups = numbers[:4], numbers[4:10], numbers[10]
        return cls((shape[0], shape[1], shape[2], shape[3]), (a, b), (c, d), (e, f), groups)


def batch_innermost(x: Tensor) -> Tensor:
    """The memory of an N, C, H, W tensor as [H, W, C, N]: a view if it is in that format already, else a copy."""
    return x.permute(2, 3, 1, 0).contiguous()


def is_batch_innermost(x: Tensor) -> bool:
    """Whether an N, C, H, W tensor is in the format that the kernels read without a copy."""
    return x.dim() == 4 and x.permute(2, 3, 1, 0).is_contiguous()
