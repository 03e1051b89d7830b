"""The shape of a sparse layer, and the HWCN memory layout of its activations."""

from dataclasses import dataclass

from torch import Tensor

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """A convolution without its weights. A linear layer is a 1x1 convolution on activations of one pixel.

    ``shape``: (output channels, input channels of one group, kernel height, kernel width).
    """

    shape: tuple[int, int, int, int]
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def inputs(self) -> int:
        """Input channels of all groups."""
        return self.shape[1] * self.groups

    @property
    def taps(self) -> int:
        """Positions of the kernel: height times width."""
        return self.shape[2] * self.shape[3]

    @property
    def numel(self) -> int:
        """Weights of the dense layer."""
        return self.shape[0] * self.shape[1] * self.taps

    def output(self, height: int, width: int) -> Pair:
        """Height and width of the output for an input of this size.

        >>> Geometry((8, 4, 3, 3), stride=(2, 2), padding=(1, 1)).output(7, 8)
        (4, 4)
        """
        sizes = [
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, dilation, kernel, stride in zip(
                (height, width), self.padding, self.dilation, self.shape[2:], self.stride, strict=True
            )
        ]
        if min(sizes) < 1:
            raise ValueError(
                f"an input of {height}x{width} is too small for a kernel of {self.shape[2]}x{self.shape[3]} "
                f"with padding {self.padding} and dilation {self.dilation}: the output would be {sizes[0]}x{sizes[1]}"
            )
        return sizes[0], sizes[1]

    def numbers(self) -> list[int]:
        """The geometry as plain integers, which an operator registered with torch can take."""
        return [*self.shape, *self.stride, *self.padding, *self.dilation, self.groups]

    @classmethod
    def of(cls, numbers: list[int]) -> "Geometry":
        """The inverse of ``numbers``."""
        shape, (a, b, c, d, e, f), groups = numbers[:4], numbers[4:10], numbers[10]
        return cls((shape[0], shape[1], shape[2], shape[3]), (a, b), (c, d), (e, f), groups)


def to_hwcn(x: Tensor) -> Tensor:
    """An N, C, H, W tensor as contiguous [H, W, C, N]: a view if its memory has that layout already, else a copy."""
    return x.permute(2, 3, 1, 0).contiguous()


def is_hwcn(x: Tensor) -> bool:
    """Whether the memory of an N, C, H, W tensor is [H, W, C, N], which the batch kernels read without a copy."""
    return x.dim() == 4 and x.permute(2, 3, 1, 0).is_contiguous()
