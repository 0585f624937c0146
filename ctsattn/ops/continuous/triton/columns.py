"""Triton: group-major tiles, in which moving by one knot moves nothing between threads.

A tile of `BN` columns holds four runs of `L = BN / 4` successive knots. Column `8 g + 2 j + p` holds knot
`2 g + p` of run `j`. In the layout of the matrix unit a thread has the columns `8 g + 2 j` and
`8 g + 2 j + 1` for every `g`: all knots of a run, so moving by one knot renames registers. Two ways to go on
where a run ends:

- Tiles of `BN - 4` pieces: the last knot of run `j` is the first of run `j + 1`, and the knot that two runs
  share stands in two columns, each with the weight from its own side. So pieces never cross a tile.
- Tiles of `BN` pieces: runs do not overlap. The four threads that share a row exchange score and weight of
  the knots where runs begin (`turn`), and tiles, visited from the last to the first, hand on those of their
  first knot.
"""

import triton
import triton.language as tl

# Runs of a tile: columns that begin no piece.
RUNS = tl.constexpr(4)


@triton.jit
def split_in_two(x, M: tl.constexpr, N: tl.constexpr):
    """Split [M, N] into its left and right [M, N / 2]."""
    return tl.split(tl.permute(tl.reshape(x, (M, 2, N // 2)), (0, 2, 1)))


@triton.jit
def join_two(left, right, M: tl.constexpr, N: tl.constexpr):
    """Join two [M, N / 2] into [M, N]."""
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (M, N))


@triton.jit
def split_in_four(x, M: tl.constexpr, N: tl.constexpr):
    """Split [M, N] into four [M, N / 4]."""
    left, right = split_in_two(x, M, N)
    x0, x1 = split_in_two(left, M, N // 2)
    x2, x3 = split_in_two(right, M, N // 2)
    return x0, x1, x2, x3


@triton.jit
def join_four(x0, x1, x2, x3, M: tl.constexpr, N: tl.constexpr):
    """Join four [M, N / 4] into [M, N]."""
    return join_two(join_two(x0, x1, M, N // 2), join_two(x2, x3, M, N // 2), M, N)


@triton.jit
def split_pairs(x, M: tl.constexpr, N: tl.constexpr):
    """Split [M, N] into its even and odd columns [M, N / 2]."""
    return tl.split(tl.reshape(x, (M, N // 2, 2)))


@triton.jit
def join_pairs(even, odd, M: tl.constexpr, N: tl.constexpr):
    """Join even and odd columns [M, N / 2] into [M, N]."""
    return tl.reshape(tl.join(even, odd), (M, N))


@triton.jit
def split_in_eight(x, M: tl.constexpr):
    """Split 32 columns [M, 32] into eight successive knots of each run, [M, RUNS] each."""
    even, odd = split_pairs(x, M, 32)
    x0, x2, x4, x6 = split_in_four(even, M, 16)
    x1, x3, x5, x7 = split_in_four(odd, M, 16)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def join_eight(x0, x2, x4, x6, odd, M: tl.constexpr):
    """Join even knots of each run [M, RUNS] and the odd ones [M, 16] into 32 columns."""
    return join_pairs(join_four(x0, x2, x4, x6, M, 16), odd, M, 32)


@triton.jit
def place_in_run(BN: tl.constexpr):
    """Which knot of its run each column of a tile holds."""
    c = tl.arange(0, BN)
    return c // 8 * 2 + c % 2


@triton.jit
def tile_offsets(BN: tl.constexpr, PIECES: tl.constexpr):
    """Knot of each column of a tile of `PIECES` pieces, relative to its first."""
    return tl.arange(0, BN) % 8 // 2 * (PIECES // RUNS) + place_in_run(BN)


@triton.jit
def begins_piece(BN: tl.constexpr):
    """Whether a piece begins at the knot of each column of a tile: at all but the last of each run."""
    return place_in_run(BN) < BN // RUNS - 1


@triton.jit
def is_last_run(M: tl.constexpr):
    """Whether a column of [M, RUNS] belongs to the last run."""
    return tl.broadcast_to((tl.arange(0, RUNS) == RUNS - 1)[None, :], (M, RUNS))


@triton.jit
def first_of_runs(x, M: tl.constexpr, N: tl.constexpr):
    """First knot of each run, [M, RUNS], of a tile or its left part [M, N]."""
    x, _odd = split_pairs(x, M, N)
    if N >= 64:
        x, _right = split_in_two(x, M, N // 2)
    x, _right = split_in_two(x, M, 16)
    x, _right = split_in_two(x, M, 8)
    return x


@triton.jit
def last_of_runs(x, M: tl.constexpr, N: tl.constexpr):
    """Last knot of each run, [M, RUNS], of a tile or its right part [M, N]."""
    _even, x = split_pairs(x, M, N)
    if N >= 64:
        _left, x = split_in_two(x, M, N // 2)
    _left, x = split_in_two(x, M, 16)
    _left, x = split_in_two(x, M, 8)
    return x


@triton.jit
def over_runs(x, M: tl.constexpr):
    """[M] as [M, RUNS] in the layout that the parts of [M, BN] have."""
    same, _same = split_pairs(tl.broadcast_to(x[:, None], (M, 2 * RUNS)), M, 2 * RUNS)
    return same


@triton.jit
def turn(x, after, M: tl.constexpr, FAST: tl.constexpr):
    """Columns of [M, RUNS] moved one to the left, the first to the last; the same with `after` in the last.

    Four threads share a row, so they exchange registers. `tl.gather` does the same, but the compiler then
    takes all that depends on it through shared memory.
    """
    if FAST == 2:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 lane, from;
            .reg .pred last;
            mov.u32 lane, %laneid;
            add.u32 from, lane, 1;
            shfl.sync.idx.b32 $0, $2, from, 0x1c1f, 0xffffffff;
            and.b32 from, lane, 3;
            setp.eq.u32 last, from, 3;
            selp.b32 $1, $3, $0, last;
            }
            """,
            "=&f,=f,f,f",
            [x, after],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        run = tl.broadcast_to(((tl.arange(0, RUNS) + 1) % RUNS)[None, :], (M, RUNS))
        turned = tl.gather(x, run, 1)
        return turned, tl.where(is_last_run(M), after, turned)


@triton.jit
def turn_back(x, before, M: tl.constexpr, FAST: tl.constexpr):
    """Columns of [M, RUNS] moved one to the right, with `before` in the first; see `turn`."""
    if FAST == 2:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 lane, from;
            .reg .pred first;
            mov.u32 lane, %laneid;
            add.u32 from, lane, 3;
            shfl.sync.idx.b32 $0, $1, from, 0x1c1f, 0xffffffff;
            and.b32 from, lane, 3;
            setp.eq.u32 first, from, 0;
            selp.b32 $0, $2, $0, first;
            }
            """,
            "=&f,f,f",
            [x, before],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        run = tl.broadcast_to(((tl.arange(0, RUNS) + RUNS - 1) % RUNS)[None, :], (M, RUNS))
        is_first = tl.broadcast_to((tl.arange(0, RUNS) == 0)[None, :], (M, RUNS))
        return tl.where(is_first, before, tl.gather(x, run, 1))
