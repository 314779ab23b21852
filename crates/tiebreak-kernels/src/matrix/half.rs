//! Products of bf16 operands with f32 sums: the kernels, and which one this processor has.

use std::sync::OnceLock;
use std::time::Instant;

use super::tiles::{DEPTH, Line, Part, SPAN, Side, Threads, Tiles};
use super::{Into, Matrix, MatrixMut, multiply};
use crate::simd::{Level, level};

/// Arithmetic of the large products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Single precision.
    F32,
    /// Operands rounded to bf16, sums in f32, by this kernel.
    Bf16(Bf16Kernel),
}

impl Precision {
    /// For a log: the kernel of the large products and the instruction set of the other loops.
    pub fn describe(self) -> String {
        let products = match self {
            Precision::F32 if level() == Level::Off => "f32 by tensor operations",
            Precision::F32 => "f32 by gemm",
            Precision::Bf16(kernel) => kernel.name(),
        };
        format!("{products}, loops {:?}", level()).to_lowercase()
    }

    /// For operations that have no composition of the other.
    pub(crate) fn require_f32(self) {
        assert!(self == Precision::F32, "bf16 products need contiguous f32 tensors on flex and native loops");
    }
}

/// How bf16 products are computed. Kernels add in different orders, so they differ in the last bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Kernel {
    /// Tile registers (AMX-BF16).
    Amx,
    /// Vectors (AVX512-BF16).
    Avx512,
    /// Plain loops, on every processor: what the others are compared with. Slower than f32.
    Plain,
}

impl Bf16Kernel {
    /// The fastest kernel of this processor, with [`level`] AVX-512; `None` where f32 is faster than what there is.
    ///
    /// AMX always is faster. Whether AVX512-BF16 is depends on the processor (AMD's multiplies twice as many numbers per cycle
    /// as in f32, Intel's does not), so the first call measures it, in about a millisecond.
    pub fn fastest() -> Option<Self> {
        static AVX512_PAYS: OnceLock<bool> = OnceLock::new();
        if level() != Level::Avx512 {
            return None;
        }
        if Bf16Kernel::Amx.available() {
            return Some(Bf16Kernel::Amx);
        }
        let pays = Bf16Kernel::Avx512.available() && *AVX512_PAYS.get_or_init(|| Bf16Kernel::Avx512.beats_f32());
        pays.then_some(Bf16Kernel::Avx512)
    }

    /// Whether a product that stays in the second cache takes less time than in f32, packing aside.
    fn beats_f32(self) -> bool {
        const SIZE: usize = 128;
        const INNER: usize = 512;
        let values = vec![1.0; SIZE * INNER];
        let (a, b) = (Matrix::new(&values, SIZE, INNER), Matrix::new(&values, INNER, SIZE));
        let (left, right) = (Tiles::new(a, Side::Left, Threads::One), Tiles::new(b, Side::Right, Threads::One));
        let mut y = vec![0.0; SIZE * SIZE];
        let mut least = |f: &dyn Fn(MatrixMut)| {
            let mut once = || {
                let start = Instant::now();
                f(MatrixMut::new(&mut y, SIZE, SIZE));
                start.elapsed()
            };
            (0..10).map(|_| once()).min()
        };
        let rounded = least(&|y| multiply_tiles(self, y, left.whole(), right.whole(), Into::Overwrite, Threads::One));
        rounded < least(&|y| multiply(y, a, b, Into::Overwrite))
    }

    /// Whether this processor and system have it.
    pub fn available(self) -> bool {
        static FOUND: OnceLock<[bool; 2]> = OnceLock::new();
        let [amx, avx512] = *FOUND.get_or_init(|| [amx::permitted(), avx512_detected()]);
        match self {
            Bf16Kernel::Amx => amx,
            Bf16Kernel::Avx512 => avx512,
            Bf16Kernel::Plain => true,
        }
    }

    /// Its name in logs: `amx-bf16`, `avx512-bf16` or `plain-bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Bf16Kernel::Amx => "amx-bf16",
            Bf16Kernel::Avx512 => "avx512-bf16",
            Bf16Kernel::Plain => "plain-bf16",
        }
    }
}

fn avx512_detected() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Rows and columns of y that a kernel computes at once.
const BLOCK: usize = 2 * SPAN;
/// Tiles of the inner size per pass over a task's part of y: two right panels of them stay in the first cache.
const PASS: usize = 16;
/// Blocks of a task, down and across: long rows of y for the stores; fewer where y is small, or there would be too few
/// tasks.
const TASK: [usize; 2] = [8, 16];
const SMALL_TASK: [usize; 2] = [4, 4];

/// y = a b or y += a b. The order of additions depends on the sizes alone.
///
/// # Panics
/// If the processor lacks the kernel.
pub(crate) fn multiply_tiles(kernel: Bf16Kernel, y: MatrixMut, a: Part, b: Part, into: Into, threads: Threads) {
    assert!(kernel.available(), "this processor has no {}", kernel.name());
    assert!(a.side() == Side::Left && b.side() == Side::Right && a.depth.len() == b.depth.len());
    assert!(y.rows == a.span.len() && y.columns == b.span.len());
    if a.depth.is_empty() {
        return y.fill_zero(into);
    }
    let blocks = [y.rows.div_ceil(BLOCK), y.columns.div_ceil(BLOCK)];
    let [down, across] = if blocks[0] * blocks[1] >= 1024 { TASK } else { SMALL_TASK }.map(|blocks| blocks * BLOCK);
    let mut tasks = Vec::new();
    for row in (0..y.rows).step_by(down) {
        for column in (0..y.columns).step_by(across) {
            let (rows, columns) = (down.min(y.rows - row), across.min(y.columns - column));
            // SAFETY: the parts of the grid lie inside `y` and do not overlap.
            let part =
                unsafe { MatrixMut::strided(y.values.add(row * y.row_stride + column), rows, columns, y.row_stride) };
            tasks.push((part, row, column));
        }
    }
    let length = a.depth.len().div_ceil(DEPTH);
    threads.each(tasks, |(part, row, column)| {
        // Only in here, where no other task can come between.
        let _tiles = (kernel == Bf16Kernel::Amx).then(amx::Configured::new);
        for start in (0..length).step_by(PASS) {
            let length = PASS.min(length - start);
            let add = into == Into::Add || start > 0;
            // Along rows of y, which is what the stores cost least in.
            for i in (0..part.rows).step_by(BLOCK) {
                for j in (0..part.columns).step_by(BLOCK) {
                    let (left, right) = (a.from(row + i, start * DEPTH), b.from(column + j, start * DEPTH));
                    let factors = Factors { left, right, panels: [a.panel(), b.panel()], length };
                    // Two panels of `length` tiles, which exist because panels come in twos.
                    let enough = |lines: &[Line], panel: usize| lines.len() >= panel + length * SPAN;
                    assert!(enough(left, a.panel()) && enough(right, b.panel()));
                    let inside = [BLOCK.min(part.rows - i), BLOCK.min(part.columns - j)];
                    // SAFETY: inside the part.
                    let y = unsafe { part.values.add(i * part.row_stride + j) };
                    if inside == [BLOCK; 2] {
                        // SAFETY: a whole block lies in the part, which is a unique borrow; the factors are long enough, and
                        // the kernel is available, with its tiles configured, as checked above.
                        unsafe { block(kernel, factors, y, part.row_stride, add) };
                        continue;
                    }
                    let mut sums = [[0f32; BLOCK]; BLOCK];
                    // SAFETY: as above, with a block of its own.
                    unsafe { block(kernel, factors, sums.as_mut_ptr().cast(), BLOCK, false) };
                    for (r, sums) in sums[..inside[0]].iter().enumerate() {
                        for (c, sum) in sums[..inside[1]].iter().enumerate() {
                            // SAFETY: inside the part; read only where something has been written before.
                            unsafe {
                                let y = y.add(r * part.row_stride + c);
                                *y = if add { *y + sum } else { *sum };
                            }
                        }
                    }
                }
            }
        }
    });
}

/// `length` tiles of two panels of each factor; the second panel begins `panels` lines after the first.
#[derive(Clone, Copy)]
struct Factors<'a> {
    left: &'a [Line],
    right: &'a [Line],
    panels: [usize; 2],
    length: usize,
}

/// One block of y, whose rows are `stride` apart.
///
/// # Safety
/// The kernel is available and configured, y can be written (and read, with `add`), and both factors hold `panels` and
/// `length` times 16 lines.
unsafe fn block(kernel: Bf16Kernel, factors: Factors, y: *mut f32, stride: usize, add: bool) {
    match kernel {
        // SAFETY: the caller's.
        Bf16Kernel::Amx => unsafe { amx::block(factors, y, stride, add) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's.
        Bf16Kernel::Avx512 => unsafe { avx512_block(factors, y, stride, add) },
        // SAFETY: the caller's.
        _ => unsafe { plain_block(factors, y, stride, add) },
    }
}

/// # Safety
/// As for [`block`].
unsafe fn plain_block(f: Factors, y: *mut f32, stride: usize, add: bool) {
    let half = |pair: u32| [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)];
    for row in 0..BLOCK {
        for column in 0..BLOCK {
            let mut sum = 0.0;
            for line in 0..f.length * SPAN {
                let left = f.left[row / SPAN * f.panels[0] + line / SPAN * SPAN + row % SPAN].0[line % SPAN];
                let right = f.right[column / SPAN * f.panels[1] + line].0[column % SPAN];
                let ([a, b], [c, d]) = (half(left), half(right));
                sum += a * c;
                sum += b * d;
            }
            // SAFETY: the caller's.
            unsafe {
                let y = y.add(row * stride + column);
                *y = if add { *y + sum } else { sum };
            }
        }
    }
}

/// Eight rows at a time by two vectors of columns: 16 sums in flight.
///
/// # Safety
/// As for [`block`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn avx512_block(f: Factors, y: *mut f32, stride: usize, add: bool) {
    use std::arch::x86_64::*;
    let (left, right) = (f.left.as_ptr(), f.right.as_ptr());
    for eight in 0..4 {
        // SAFETY: lines and rows of y exist as the caller says.
        unsafe {
            let left = left.add(eight / 2 * f.panels[0] + eight % 2 * 8);
            let y = y.add(8 * eight * stride);
            let mut sums = [[_mm512_setzero_ps(); 2]; 8];
            if add {
                for (r, sums) in sums.iter_mut().enumerate() {
                    *sums = [_mm512_loadu_ps(y.add(r * stride)), _mm512_loadu_ps(y.add(r * stride + SPAN))];
                }
            }
            for tile in 0..f.length {
                let left = left.add(tile * SPAN).cast::<i32>();
                for pair in 0..SPAN {
                    let columns = [0, f.panels[1]].map(|panel| {
                        let line = _mm512_load_si512(right.add(panel + tile * SPAN + pair).cast());
                        std::mem::transmute::<__m512i, __m512bh>(line)
                    });
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let row = _mm512_set1_epi32(*left.add(r * SPAN + pair));
                        let row = std::mem::transmute::<__m512i, __m512bh>(row);
                        sums[0] = _mm512_dpbf16_ps(sums[0], row, columns[0]);
                        sums[1] = _mm512_dpbf16_ps(sums[1], row, columns[1]);
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                _mm512_storeu_ps(y.add(r * stride), sums[0]);
                _mm512_storeu_ps(y.add(r * stride + SPAN), sums[1]);
            }
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use super::{Factors, Line, SPAN};
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid_count, _xgetbv};

    /// Whether the processor has bf16 tiles, the system saves them, and this process may use them.
    pub(super) fn permitted() -> bool {
        #[target_feature(enable = "xsave")]
        fn saved() -> bool {
            // SAFETY: reading register 0 has no effect; OSXSAVE is part of what was detected.
            let states = unsafe { _xgetbv(0) };
            states & (3 << 17) == 3 << 17
        }
        // AMX-BF16 and AMX-TILE.
        let wanted = 1 << 22 | 1 << 24;
        let (leaves, found) = (__cpuid_count(0, 0).eax, || __cpuid_count(7, 0).edx);
        if leaves < 7 || found() & wanted != wanted || !is_x86_feature_detected!("xsave") {
            return false;
        }
        if !is_x86_feature_detected!("avx512bf16") {
            return false;
        }
        // SAFETY: detected above.
        if !unsafe { saved() } {
            return false;
        }
        // arch_prctl(ARCH_REQ_XCOMP_PERM, tile data): the system gives each thread room for tiles at its first use.
        const ARCH_PRCTL: i64 = 158;
        let answer: i64;
        // SAFETY: asks for a permission; no memory is passed. A system call overwrites rcx and r11.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => answer,
                in("rdi") 0x1023,
                in("rsi") 18,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        answer == 0
    }

    /// The shapes of this thread's tiles, all 16 lines of 64 bytes; given back when dropped.
    pub(super) struct Configured(());

    impl Configured {
        pub(super) fn new() -> Self {
            #[repr(align(64))]
            struct Shapes([u8; 64]);
            let mut shapes = Shapes([0; 64]);
            // Palette 1; bytes per line as u16 from 16 on, lines as u8 from 48 on.
            shapes.0[0] = 1;
            for tile in 0..8 {
                shapes.0[16 + 2 * tile] = 64;
                shapes.0[48 + tile] = SPAN as u8;
            }
            // SAFETY: reads 64 bytes; `multiply_tiles` has checked that the processor has tiles. The compiler uses none.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly, preserves_flags)) };
            Self(())
        }
    }

    impl Drop for Configured {
        fn drop(&mut self) {
            // SAFETY: the tiles were configured, and nobody else on this thread uses them.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
        }
    }

    /// # Safety
    /// As for [`super::block`]; a [`Configured`] lives on this thread.
    pub(super) unsafe fn block(f: Factors, y: *mut f32, stride: usize, add: bool) {
        let (left, right): (*const Line, *const Line) = (f.left.as_ptr(), f.right.as_ptr());
        // SAFETY: reads and writes what the caller says; tiles are no registers of the compiler's.
        unsafe {
            let lower = y.add(SPAN * stride);
            asm!(
                "test {add:e}, {add:e}",
                "jz 2f",
                "tileloadd tmm0, [{y} + {stride}]",
                "tileloadd tmm1, [{y} + {stride} + 64]",
                "tileloadd tmm2, [{lower} + {stride}]",
                "tileloadd tmm3, [{lower} + {stride} + 64]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tileloadd tmm4, [{a0} + {line}]",
                "tileloadd tmm6, [{b0} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b1} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a1} + {line}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a0}, 1024",
                "add {b0}, 1024",
                "add {a1}, 1024",
                "add {b1}, 1024",
                "dec {length}",
                "jnz 3b",
                "tilestored [{y} + {stride}], tmm0",
                "tilestored [{y} + {stride} + 64], tmm1",
                "tilestored [{lower} + {stride}], tmm2",
                "tilestored [{lower} + {stride} + 64], tmm3",
                add = in(reg) add as u32,
                y = in(reg) y,
                lower = in(reg) lower,
                stride = in(reg) 4 * stride,
                line = in(reg) 64usize,
                a0 = inout(reg) left => _,
                a1 = inout(reg) left.add(f.panels[0]) => _,
                b0 = inout(reg) right => _,
                b1 = inout(reg) right.add(f.panels[1]) => _,
                length = inout(reg) f.length => _,
                options(nostack),
            );
        }
    }
}

/// Elsewhere nothing is permitted, so the rest is never reached.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod amx {
    pub(super) fn permitted() -> bool {
        false
    }

    pub(super) struct Configured(());

    impl Configured {
        pub(super) fn new() -> Self {
            Self(())
        }
    }

    pub(super) unsafe fn block(_: super::Factors, _: *mut f32, _: usize, _: bool) {
        unreachable!("not available")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{available_kernels, distance, normal, rounded};

    #[test]
    fn every_kernel_multiplies_rounded_operands() {
        for (m, n, k) in
            [(1, 1, 1), (7, 5, 3), (32, 32, 32), (130, 70, 33), (65, 1025, 2), (33, 31, 1100), (300, 300, 64)]
        {
            let (a, b) = (normal([m, k], 1.0).0, normal([k, n], 1.0).0);
            let [a, b] = [a, b].map(|x| x.into_iter().map(|x| x as f32).collect::<Vec<f32>>());
            let exact: Vec<f64> = {
                let [a, b] = [&a, &b].map(|x| x.iter().map(|x| rounded(*x as f64)).collect::<Vec<f64>>());
                let cell = |i: usize| (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum();
                (0..m * n).map(cell).collect()
            };
            let a = Tiles::new(Matrix::new(&a, m, k), Side::Left, Threads::All);
            let b = Tiles::new(Matrix::new(&b, k, n), Side::Right, Threads::All);
            for kernel in available_kernels() {
                let mut y = vec![f32::NAN; m * n];
                let wide = |y: &[f32]| y.iter().map(|x| *x as f64).collect::<Vec<f64>>();
                multiply_tiles(
                    kernel,
                    MatrixMut::new(&mut y, m, n),
                    a.whole(),
                    b.whole(),
                    Into::Overwrite,
                    Threads::All,
                );
                let d = distance(&wide(&y), &exact);
                assert!(d < 1e-6, "{kernel:?} {m} {n} {k}: {d:e}");
                multiply_tiles(kernel, MatrixMut::new(&mut y, m, n), a.whole(), b.whole(), Into::Add, Threads::All);
                let d = distance(&wide(&y), &exact.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
                assert!(d < 1e-6, "{kernel:?} {m} {n} {k} twice: {d:e}");
            }
        }
    }

    #[test]
    fn nothing_to_sum_gives_zeros_and_nan_stays_in_its_row() {
        for kernel in available_kernels() {
            let (a, b) = (Matrix::new(&[], 3, 0), Matrix::new(&[], 0, 2));
            let (a, b) = (Tiles::new(a, Side::Left, Threads::All), Tiles::new(b, Side::Right, Threads::All));
            let mut y = [f32::NAN; 6];
            multiply_tiles(kernel, MatrixMut::new(&mut y, 3, 2), a.whole(), b.whole(), Into::Overwrite, Threads::All);
            assert_eq!(y, [0.0; 6]);
            let (mut a, b) = (vec![1.0; 40 * 33], vec![1.0; 33 * 40]);
            a[20 * 33 + 32] = f32::NAN;
            let a = Tiles::new(Matrix::new(&a, 40, 33), Side::Left, Threads::All);
            let b = Tiles::new(Matrix::new(&b, 33, 40), Side::Right, Threads::All);
            let mut y = vec![0.0; 1600];
            multiply_tiles(kernel, MatrixMut::new(&mut y, 40, 40), a.whole(), b.whole(), Into::Overwrite, Threads::All);
            assert!(
                (0..1600).all(|i| y[i].is_nan() == (i / 40 == 20) && (y[i].is_nan() || y[i] == 33.0)),
                "{kernel:?}"
            );
        }
    }

    #[test]
    fn a_product_in_f32_is_near() {
        let (a, b) = (normal([50, 90], 1.0).0, normal([90, 40], 1.0).0);
        let [a, b] = [a, b].map(|x| x.into_iter().map(|x| x as f32).collect::<Vec<f32>>());
        let (left, right) = (Matrix::new(&a, 50, 90), Matrix::new(&b, 90, 40));
        let (mut y, mut exact) = (vec![0.0; 2000], vec![0.0; 2000]);
        multiply(MatrixMut::new(&mut exact, 50, 40), left, right, Into::Overwrite);
        let kernel = Bf16Kernel::fastest().unwrap_or(Bf16Kernel::Plain);
        let (left, right) = (Tiles::new(left, Side::Left, Threads::All), Tiles::new(right, Side::Right, Threads::All));
        multiply_tiles(
            kernel,
            MatrixMut::new(&mut y, 50, 40),
            left.whole(),
            right.whole(),
            Into::Overwrite,
            Threads::All,
        );
        let [y, exact] = [y, exact].map(|x| x.into_iter().map(f64::from).collect::<Vec<f64>>());
        let d = distance(&y, &exact);
        assert!((1e-4..4e-3).contains(&d), "{d:e}");
    }
}
