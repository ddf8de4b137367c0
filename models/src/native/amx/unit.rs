//! The tile unit of a core: whether there is one, its set-up, and the product of two panels.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::panel::{SIDE, TILES, Tile};

/// `arch_prctl`: asks the kernel for the registers of a feature, for all threads of the process (Linux 5.16).
const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
/// The feature: eight registers of 1 KiB.
const XFEATURE_XTILEDATA: libc::c_int = 18;

/// Whether this machine has the unit, and the kernel lets this process use it.
pub(in crate::native) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let features = __cpuid_count(7, 0).edx;
        let (has_bf16, has_tiles) = (features & 1 << 22 != 0, features & 1 << 24 != 0);
        // SAFETY: the call changes nothing but what the kernel saves of this process' registers.
        let is_permitted =
            || unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0;
        has_bf16 && has_tiles && is_x86_feature_detected!("avx512f") && is_permitted()
    })
}

/// The shapes of the registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    reserved: [u8; 15],
    bytes_of_a_row: [u16; 16],
    rows: [u8; 16],
}

/// The unit of this thread, whose registers all hold a tile.
pub(super) struct TileUnit(());

impl TileUnit {
    /// `None` if this machine has none.
    pub(super) fn new() -> Option<TileUnit> {
        if !is_available() {
            return None;
        }
        let mut shapes = Shapes { palette: 1, reserved: [0; 15], bytes_of_a_row: [0; 16], rows: [0; 16] };
        shapes.bytes_of_a_row[..8].fill(64);
        shapes.rows[..8].fill(SIDE as u8);
        // SAFETY: the unit is there, and the shapes are those of palette 1: eight registers of 16 rows of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly)) };
        Some(TileUnit(()))
    }

    /// `out = a * b`, or `out += a * b` if `add`, for two panels of as many blocks: 32 x 32 numbers of `out`, whose rows are `width` apart.
    pub(super) fn multiply(&self, out: &mut [f32], width: usize, a: &[Tile], b: &[Tile], add: bool) {
        let blocks = a.len() / TILES;
        assert!(blocks > 0 && a.len() == blocks * TILES && b.len() == a.len(), "panels are of whole blocks, as many");
        assert!(width >= 2 * SIDE && out.len() >= (2 * SIDE - 1) * width + 2 * SIDE, "the product fits its slice");
        let upper = out.as_mut_ptr();
        let lower = upper.wrapping_add(SIDE * width);
        // SAFETY: `TileUnit` is there, so the registers have their shapes. Each load reads 16 rows of 64 bytes: of the four tiles of a
        // block of `a` or `b`, as long as there are blocks, or of `out`, which the stores write, too; the assertions checked their lengths.
        // The compiler uses no tile registers.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jz 2f",
                "tileloadd tmm0, [{upper} + {width}]",
                "tileloadd tmm1, [{upper} + {width} + 64]",
                "tileloadd tmm2, [{lower} + {width}]",
                "tileloadd tmm3, [{lower} + {width} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                // Each part is loaded as late as it is needed, so that loads overlap with products. First a0 * b1,
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {row} + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // then a0 * b0,
                "tileloadd tmm6, [{b} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // and a1 * b0.
                "tileloadd tmm4, [{a} + {row} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {row} + 3072]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 4096",
                "add {b}, 4096",
                "dec {blocks}",
                "jnz 3b",
                "tilestored [{upper} + {width}], tmm0",
                "tilestored [{upper} + {width} + 64], tmm1",
                "tilestored [{lower} + {width}], tmm2",
                "tilestored [{lower} + {width} + 64], tmm3",
                a = inout(reg) a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                blocks = inout(reg) blocks => _,
                upper = in(reg) upper,
                lower = in(reg) lower,
                width = in(reg) width * size_of::<f32>(),
                row = in(reg) 64usize,
                add = in(reg) u32::from(add),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for TileUnit {
    /// Without it, the kernel would save the registers at each switch of threads.
    fn drop(&mut self) {
        // SAFETY: the unit is there. The compiler uses no tile registers.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
