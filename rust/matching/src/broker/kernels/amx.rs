//! Tiles (AMX): 16 codes by 16 queries by 64 components with one instruction, for the batch loop. All else is that of
//! [`avx512`].
//!
//! The instructions have no stable intrinsics, hence the assembly. No other code of the process uses the tile registers: the
//! compiler does not know them.
use std::arch::asm;

use super::{BLOCK, Block, Kernels, LANE, Panel, avx512};

pub(super) const KERNELS: Kernels = Kernels {
    name: "amx",
    together: 256,
    pack,
    panel,
    ..avx512::KERNELS
};

/// Rows of a tile, and its columns of 32 bits.
const TILE: usize = 16;

/// Whether the processor has tiles of bytes, and the kernel lets this process use them.
pub(super) fn usable() -> bool {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        const REQUEST: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
        // SAFETY: a request for more state in this process's threads; it changes nothing else, and refusal is an answer.
        // The kernel grants it only if processor and kernel can keep the state.
        features >> 24 & 3 == 3 && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    false
}

/// The shapes of the eight tiles: all have 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

static SHAPES: Shapes = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = TILE as u8;
        tile += 1;
    }
    Shapes(bytes)
};

/// Tiles of the queries: for 16 queries and 64 components, row i holds components 4i to 4i + 3 of each query. And where
/// the sums begin, since codes have an offset of 128.
fn pack(panel: &mut Panel) {
    let Panel {
        queries,
        stride,
        tiles,
        offsets,
    } = panel;
    let blocks = queries.first().map_or(0, |query| query.codes.len());
    offsets.clear();
    offsets.extend(queries.iter().map(|query| -128 * query.sum));
    offsets.resize(*stride, 0);
    tiles.clear();
    tiles.resize(*stride * blocks, Block([0; BLOCK]));
    for (at, query) in queries.iter().enumerate() {
        let (group, column) = (at / TILE, at % TILE);
        for (block, codes) in query.codes.iter().enumerate() {
            let tile = &mut tiles[(group * blocks + block) * TILE..][..TILE];
            for (row, part) in tile.iter_mut().zip(codes.0.chunks_exact(4)) {
                row.0[4 * column..4 * column + 4].copy_from_slice(part);
            }
        }
    }
}

unsafe fn panel(panel: &Panel, codes: *const u8, rows: usize, out: &mut [i32]) {
    let blocks = panel.queries.first().map_or(0, |query| query.codes.len());
    let (width, stride) = (blocks * BLOCK, panel.stride);
    let bytes = stride * size_of::<i32>();
    assert!(rows <= 64 && out.len() >= rows.next_multiple_of(2 * TILE) * stride);
    assert!(stride.is_multiple_of(LANE) && panel.offsets.len() == stride);
    assert!(panel.tiles.len() == stride * blocks);
    // SAFETY: the processor has tiles, says the contract of `Kernels`. All addresses lie in `codes` (64 cells, says the
    // contract), in the packed queries and in `out`, by the lengths just asserted. Tile registers are released at the
    // end, and nothing in between can unwind.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, preserves_flags));
        for first in (0..stride).step_by(2 * TILE) {
            let starts = panel.offsets.as_ptr().add(first);
            let left = panel.tiles.as_ptr().add(first * blocks);
            let right = left.add(TILE * blocks);
            for row in (0..rows).step_by(2 * TILE) {
                // Every row of a sum begins with the same offsets: a step of 0 bytes.
                asm!(
                    "tileloadd tmm0, [{left} + {none}*1]",
                    "tileloadd tmm1, [{right} + {none}*1]",
                    "tileloadd tmm2, [{left} + {none}*1]",
                    "tileloadd tmm3, [{right} + {none}*1]",
                    left = in(reg) starts,
                    right = in(reg) starts.add(TILE),
                    none = in(reg) 0usize,
                    options(nostack, preserves_flags, readonly),
                );
                let upper = codes.add(row * width);
                let lower = upper.add(TILE * width);
                for block in 0..blocks {
                    asm!(
                        "tileloadd tmm6, [{left} + {line}*1]",
                        "tileloadd tmm4, [{upper} + {width}*1]",
                        "tdpbusd tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{right} + {line}*1]",
                        "tdpbusd tmm1, tmm4, tmm7",
                        "tileloadd tmm5, [{lower} + {width}*1]",
                        "tdpbusd tmm2, tmm5, tmm6",
                        "tdpbusd tmm3, tmm5, tmm7",
                        upper = in(reg) upper.add(block * BLOCK),
                        lower = in(reg) lower.add(block * BLOCK),
                        left = in(reg) left.add(block * TILE),
                        right = in(reg) right.add(block * TILE),
                        width = in(reg) width,
                        line = in(reg) BLOCK,
                        options(nostack, preserves_flags, readonly),
                    );
                }
                let upper = out.as_mut_ptr().add(row * stride + first);
                let lower = upper.add(TILE * stride);
                asm!(
                    "tilestored [{upper} + {bytes}*1], tmm0",
                    "tilestored [{upper} + {bytes}*1 + 64], tmm1",
                    "tilestored [{lower} + {bytes}*1], tmm2",
                    "tilestored [{lower} + {bytes}*1 + 64], tmm3",
                    upper = in(reg) upper,
                    lower = in(reg) lower,
                    bytes = in(reg) bytes,
                    options(nostack, preserves_flags),
                );
            }
        }
        asm!("tilerelease", options(nostack, preserves_flags, nomem));
    }
}
