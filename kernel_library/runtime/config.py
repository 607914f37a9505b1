"""Launch configurations: how a problem is cut into tiles, and defaults for shapes nobody tuned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """How one launch cuts its problem. Never part of what a kernel computes.

    ``subtiles`` splits the columns of a finished tile so that the epilogue needs fewer registers and less shared
    memory at a time. ``tma`` moves A and W by TMA descriptors (None: whenever the device and the tensors allow),
    ``load_tma`` and ``store_tma`` the epilogue's tiles.

    ``pingpong`` asks for the second mainloop, on GPUs and tensors that it can run on: tiles of 128 rows and up to 192
    columns, of which two are in flight, everything by TMA. It has ``load_stages`` buffers for the sub-tiles that the
    epilogue loads, and its own number of warps.
    """

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    group_m: int = 8
    subtiles: int = 1
    num_warps: int = 8
    num_stages: int = 3
    tma: bool | None = None
    load_tma: bool = False
    store_tma: bool = False
    pingpong: bool = False
    load_stages: int = 2

    def __post_init__(self) -> None:
        if self.pingpong:
            self._check_pingpong()
            return
        for name in ("block_m", "block_n", "block_k", "subtiles", "num_warps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1 or value & (value - 1):
                raise ValueError(f"Config.{name} must be a power of two; got {value}")
            if name.startswith("block_") and value < 16:
                raise ValueError(f"Config.{name} must be at least 16, the least a tensor core takes; got {value}")
        for name in ("group_m", "num_stages"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Config.{name} must be a positive number; got {value}")
        if self.num_warps > 32:
            raise ValueError(f"Config.num_warps must be at most 32; got {self.num_warps}")
        if self.block_n // self.subtiles < 8:
            raise ValueError(
                f"a sub-tile must keep at least 8 columns; got block_n={self.block_n}, subtiles={self.subtiles}"
            )

    @property
    def tail(self) -> int:
        """Columns of a ping-pong tile beyond the largest power of two: the matrix instruction's shapes are such."""
        return self.block_n - (1 << (self.block_n.bit_length() - 1))

    def _check_pingpong(self) -> None:
        if self.block_m != 128 or not 64 <= self.block_n <= 192 or self.tail & (self.tail - 1) or self.block_n % 16:
            raise ValueError(
                "a ping-pong tile has 128 rows and 64 to 192 columns, a power of two or the sum of two; "
                f"got block_m={self.block_m}, block_n={self.block_n}"
            )
        width = self.block_n // self.subtiles
        if (
            width * self.subtiles != self.block_n
            or width & (width - 1)
            or width < 16
            or (self.tail and self.tail % width)
        ):
            raise ValueError(
                "a ping-pong sub-tile is a power of two columns wide, at least 16, and divides the tile and its tail; "
                f"got block_n={self.block_n}, subtiles={self.subtiles}"
            )
        if self.block_k not in (64, 128) or self.num_stages < 2 or self.load_stages < 1 or self.group_m < 1:
            raise ValueError(
                f"a ping-pong mainloop takes block_k of 64 or 128 and at least 2 stages; got block_k={self.block_k}, "
                f"num_stages={self.num_stages}, load_stages={self.load_stages}, group_m={self.group_m}"
            )


# (block_m, block_n, warps), widest first: a wide tile moves fewer bytes for each multiplication, narrow ones fill the
# device when there are few tiles.
_WIDE = (
    (128, 256, 8),
    (128, 128, 8),
    (64, 256, 4),
    (64, 128, 4),
    (64, 64, 4),
    (32, 128, 4),
    (32, 64, 4),
    (16, 128, 4),
    (16, 64, 4),
)
_IEEE = ((64, 64, 4), (32, 64, 4), (16, 64, 4))


def default_config(m: int, n: int, itemsize: int, *, multiprocessors: int, hopper: bool, extra_tiles: int) -> Config:
    """A configuration for an (m, n) product that was never tuned.

    ``itemsize`` is that of A and W in bytes, ``extra_tiles`` the number of full-width tiles that the epilogue loads and
    stores. Chooses the tile whose padded work, in waves over the multiprocessors, is least.
    """
    # fp32 multiplies in IEEE arithmetic on the CUDA cores, where accumulators of large tiles would spill.
    choices = _IEEE if itemsize == 4 else _WIDE if hopper else _WIDE[1:]

    def cost(choice: tuple[int, int, int]) -> float:
        block_m, block_n, _ = choice
        tiles = -(-m // block_m) * -(-n // block_n)
        waves = -(-tiles // multiprocessors)
        # Operand bytes a multiplication needs fall with both sides of the tile.
        return waves * block_m * block_n * (1.0 + 16.0 / block_m + 16.0 / block_n)

    block_m, block_n, warps = min(choices, key=cost)
    wide = block_m * block_n >= 128 * 256
    subtiles = (
        (4 if extra_tiles >= 3 else 2) if wide else (2 if block_m * block_n >= 128 * 128 and extra_tiles >= 3 else 1)
    )
    return Config(
        block_m,
        block_n,
        block_k=32 if itemsize == 4 else 64,
        subtiles=subtiles,
        num_warps=warps,
        num_stages=3 if wide or not hopper else 4,
        load_tma=extra_tiles >= 3,
    )
