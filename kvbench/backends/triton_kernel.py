"""The Triton kernel: a grid of programs copies a list of descriptors, each divided into pieces."""

import triton
import triton.language as tl


@triton.jit
def _copy_words(
    source, destination, groups, word: tl.constexpr, group: tl.constexpr, group_bytes: tl.constexpr, lanes: tl.constexpr
):
    """Copy `groups` groups of `group` words each; both addresses are multiples of the group size in bytes.

    A group of two 8-byte words is one 16-byte access of a thread; the hints tell the compiler so.
    """
    lane = tl.arange(0, lanes)
    count = groups * group
    from_words = tl.multiple_of(source.to(tl.pointer_type(word)), group_bytes)
    to_words = tl.multiple_of(destination.to(tl.pointer_type(word)), group_bytes)
    done = tl.zeros((), dtype=tl.int32)
    while done < count:
        index = tl.max_contiguous(tl.multiple_of(done + lane, group), group)
        tl.store(to_words + index, tl.load(from_words + index, mask=index < count), mask=index < count)
        done += lanes


@triton.jit(do_not_specialize=["table_address", "items", "pieces"])
def copy_descriptors(table_address, items, pieces, piece_bytes: tl.constexpr, lanes: tl.constexpr):
    """Copy `items` pieces; item i is piece i % pieces of descriptor i // pieces.

    `table_address` points to int64 rows (source, destination, bytes). If both addresses are multiples of 16, the bytes
    move in 16-byte accesses; if of 4, in 4-byte words; else one by one. The tail after the last whole word moves byte
    by byte.
    """
    table = tl.cast(table_address, tl.int64).to(tl.pointer_type(tl.int64))
    item = tl.program_id(0)
    while item < items:
        row = table + (item // pieces).to(tl.int64) * 3
        source = tl.load(row)
        destination = tl.load(row + 1)
        begin = (item % pieces).to(tl.int64) * piece_bytes
        end = tl.minimum(begin + piece_bytes, tl.load(row + 2))
        if begin < end:
            unaligned = source | destination
            size = (end - begin).to(tl.int32)
            whole = tl.zeros((), dtype=tl.int32)
            if unaligned % 16 == 0:
                whole = size // 16 * 16
                _copy_words(source + begin, destination + begin, size // 16, tl.int64, 2, 16, lanes)
            elif unaligned % 4 == 0:
                whole = size // 4 * 4
                _copy_words(source + begin, destination + begin, size // 4, tl.int32, 1, 4, lanes)
            _copy_words(source + begin + whole, destination + begin + whole, size - whole, tl.int8, 1, 1, lanes)
        item += tl.num_programs(0)


@triton.jit(do_not_specialize=["source_start", "destination_start"])
def gather_rows(
    source_start, destination_start, source_ids, destination_ids, rows,
    row_words: tl.constexpr, word: tl.constexpr, word_bytes: tl.constexpr, alignment: tl.constexpr,
    tile: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Copy rows of `row_words` words; row i goes from number `source_ids[i]` to number `destination_ids[i]`.

    Rows are counted from the two addresses, both multiples of `alignment`, as a row is; `rows` points to how many there
    are. A program moves `tile` rows at a time; `lanes` is a power of two of at least `row_words`.
    """
    count = tl.load(rows)
    lane = tl.arange(0, lanes)[None, :]
    first = tl.program_id(0) * tile
    while first < count:
        row = first + tl.arange(0, tile)
        live = row < count
        row_bytes: tl.constexpr = row_words * word_bytes
        from_offset = tl.load(source_ids + row, mask=live, other=0) * row_bytes
        to_offset = tl.load(destination_ids + row, mask=live, other=0) * row_bytes
        source = (tl.cast(source_start, tl.int64) + from_offset).to(tl.pointer_type(word))
        destination = (tl.cast(destination_start, tl.int64) + to_offset).to(tl.pointer_type(word))
        from_words = tl.multiple_of(source, alignment)[:, None]
        to_words = tl.multiple_of(destination, alignment)[:, None]
        mask = live[:, None] & (lane < row_words)
        tl.store(to_words + lane, tl.load(from_words + lane, mask=mask), mask=mask)
        first += tl.num_programs(0) * tile
