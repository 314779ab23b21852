//! Operands of bf16 products: rounded to nearest even and laid out in tiles.
//!
//! A tile holds 16 rows (or columns) of an operand over 32 steps of the product's inner size, as 16 lines of 16 pairs; a
//! pair is two neighbours along the inner size. On the left a line is a row of the operand, on the right a pair of steps:
//! what AMX and AVX512-BF16 take. Tiles of one panel follow each other along the inner size. Panels come in twos, and
//! what sticks out is 0.

use std::mem::MaybeUninit;
use std::ops::Range;

use rayon::prelude::*;

use super::Matrix;

/// Rows of a left operand, or columns of a right one, in a tile.
pub(super) const SPAN: usize = 16;
/// Steps of the inner size in a tile.
pub(super) const DEPTH: usize = 32;
/// Panels and tiles of a packing task.
const TASK: [usize; 2] = [8, 16];

/// A line of a tile: 16 pairs of bf16, the earlier step in the low half.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [u32; SPAN]);

/// Which factor an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// a in a b.
    Left,
    /// b in a b.
    Right,
}

/// Who computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// The whole pool.
    All,
    /// The calling thread: inside a task.
    One,
}

impl Threads {
    pub(super) fn each<T: Send>(self, tasks: Vec<T>, f: impl Fn(T) + Send + Sync) {
        match self {
            Threads::All => tasks.into_par_iter().for_each(f),
            Threads::One => tasks.into_iter().for_each(f),
        }
    }
}

/// One operand of a bf16 product.
#[derive(Debug)]
pub(crate) struct Tiles {
    lines: Vec<Line>,
    side: Side,
    /// Rows of a left operand, columns of a right one.
    span: usize,
    /// The product's inner size.
    depth: usize,
}

/// A part of an operand, itself an operand.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    tiles: &'a Tiles,
    pub(super) span: Range<usize>,
    pub(super) depth: Range<usize>,
}

impl<'a> Part<'a> {
    pub(super) fn side(&self) -> Side {
        self.tiles.side
    }

    /// Lines from one panel to the next.
    pub(super) fn panel(&self) -> usize {
        self.tiles.length() * SPAN
    }

    /// The lines from the tile at this row (or column) and step on, multiples of 16 and 32.
    pub(super) fn from(&self, row: usize, step: usize) -> &'a [Line] {
        self.tiles.from((self.span.start + row) / SPAN, (self.depth.start + step) / DEPTH)
    }
}

/// Where rounded values come from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// f32 by strides.
    Matrix(Matrix<'a>),
    /// The rows of a left operand become steps, its steps rows.
    Turned(&'a Tiles),
}

impl Tiles {
    /// A factor of a product, which should have a stride of 1.
    pub(crate) fn new(values: Matrix, side: Side, threads: Threads) -> Self {
        // Rows of `values` are rows of the operand, or columns of it on the right.
        let values = if side == Side::Left { values } else { values.t() };
        assert!(values.fits());
        Self::pack(Source::Matrix(values), side, values.rows, values.columns, threads)
    }

    /// A left operand from rows of `depth` values. `f` gets a row's number, its values, which it may change, and its place in
    /// `results`; it gives the factor by which the values are multiplied before they are rounded.
    pub(crate) fn of_values<R: Send>(
        values: &mut [f32],
        depth: usize,
        results: &mut [R],
        f: impl Fn(usize, &mut [f32], &mut R) -> f32 + Send + Sync,
    ) -> Self {
        let panels = values.chunks_mut(SPAN * depth).zip(results.chunks_mut(SPAN)).collect();
        Self::of_panels(depth, panels, |panel, (values, results), lines| {
            for (r, (row, result)) in values.chunks_exact_mut(depth).zip(results.iter_mut()).enumerate() {
                let factor = f(panel * SPAN + r, row, result);
                round_row(row, factor, &mut lines[r..]);
            }
            results.len()
        })
    }

    /// A left operand whose rows of `depth` values `f` writes, whole. It gets a row's number; what it gives goes into `results`.
    pub(crate) fn of_rows<R: Send>(
        depth: usize,
        results: &mut [R],
        f: impl Fn(usize, &mut [MaybeUninit<f32>]) -> R + Send + Sync,
    ) -> Self {
        Self::of_panels(depth, results.chunks_mut(SPAN).collect(), |panel, results, lines| {
            let mut row = vec![0f32; depth];
            for (r, result) in results.iter_mut().enumerate() {
                // SAFETY: initialised values may be seen as slots; nothing uninitialised is written to them.
                let slots = unsafe { &mut *(&raw mut row[..] as *mut [MaybeUninit<f32>]) };
                *result = f(panel * SPAN + r, slots);
                round_row(&row, 1.0, &mut lines[r..]);
            }
            results.len()
        })
    }

    /// A left operand, one task per panel; `f` writes the lines of a panel's rows and gives their number.
    fn of_panels<P: Send>(
        depth: usize,
        inputs: Vec<P>,
        f: impl Fn(usize, P, &mut [MaybeUninit<Line>]) -> usize + Send + Sync,
    ) -> Self {
        let (existing, length) = (inputs.len(), depth.div_ceil(DEPTH));
        let mut lines = unfilled(existing.next_multiple_of(2) * length * SPAN);
        let (first, padding) = lines.split_at_mut(existing * length * SPAN);
        let zeros = |line: &mut MaybeUninit<Line>| _ = line.write(Line([0; SPAN]));
        let rows = std::sync::atomic::AtomicUsize::new(0);
        let tasks = inputs.into_iter().zip(first.chunks_exact_mut(length * SPAN)).enumerate().collect();
        Threads::All.each(tasks, |(panel, (input, lines))| {
            let count = f(panel, input, lines);
            rows.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            lines.chunks_exact_mut(SPAN).flat_map(|tile| &mut tile[count..]).for_each(zeros);
        });
        padding.iter_mut().for_each(zeros);
        // SAFETY: all lines of all tiles are written, those of rows that do not exist with zeros.
        Self { lines: unsafe { filled(lines) }, side: Side::Left, span: rows.into_inner(), depth }
    }

    /// The transpose of a left operand as a factor: its rows are what the product sums over.
    pub(crate) fn turned(&self, side: Side, threads: Threads) -> Self {
        assert_eq!(self.side, Side::Left);
        Self::pack(Source::Turned(self), side, self.depth, self.span, threads)
    }

    /// Rows and columns of the operand.
    pub(super) fn shape(&self) -> (usize, usize) {
        if self.side == Side::Left { (self.span, self.depth) } else { (self.depth, self.span) }
    }

    /// The operand as it is.
    pub(super) fn whole(&self) -> Part<'_> {
        self.part(0..self.span, 0..self.depth)
    }

    /// Some rows of a left operand, or columns of a right one, over some steps of the inner size. Both begin at multiples
    /// of 32; steps that end elsewhere end with the operand's.
    pub(super) fn part(&self, span: Range<usize>, depth: Range<usize>) -> Part<'_> {
        assert!(span.start.is_multiple_of(2 * SPAN) && depth.start.is_multiple_of(DEPTH));
        assert!(span.start <= span.end && span.end <= self.span && depth.start <= depth.end);
        assert!(depth.end == self.depth || depth.end < self.depth && depth.end.is_multiple_of(DEPTH));
        Part { tiles: self, span, depth }
    }

    /// Tiles in a panel.
    fn length(&self) -> usize {
        self.depth.div_ceil(DEPTH)
    }

    /// The lines from a tile on.
    fn from(&self, panel: usize, tile: usize) -> &[Line] {
        &self.lines[(panel * self.length() + tile) * SPAN..]
    }

    fn pack(source: Source, side: Side, span: usize, depth: usize, threads: Threads) -> Self {
        let (panels, length) = (span.div_ceil(2 * SPAN) * 2, depth.div_ceil(DEPTH));
        let mut lines = unfilled(panels * length * SPAN);
        let tasks: Vec<(usize, usize)> = (0..panels)
            .step_by(TASK[0])
            .flat_map(|panel| (0..length).step_by(TASK[1]).map(move |tile| (panel, tile)))
            .collect();
        let shared = SharedLines(lines.as_mut_ptr());
        threads.each(tasks, |(panel, tile)| {
            let (panel_end, tile_end) = ((panel + TASK[0]).min(panels), (tile + TASK[1]).min(length));
            for tile in tile..tile_end {
                for panel in panel..panel_end {
                    // SAFETY: inside the buffer, and no two tasks have the same tile.
                    let to = unsafe {
                        let start = shared.get().add((panel * length + tile) * SPAN);
                        &mut *start.cast::<[MaybeUninit<Line>; SPAN]>()
                    };
                    let (free, steps) = (panel * SPAN, tile * DEPTH);
                    let (rows, existing) = (span.saturating_sub(free).min(SPAN), (depth - steps).min(DEPTH));
                    fill(source, side, [free, steps], rows, existing, to);
                }
            }
        });
        // SAFETY: the tasks have written every tile.
        Self { lines: unsafe { filled(lines) }, side, span, depth }
    }
}

fn unfilled(len: usize) -> Vec<MaybeUninit<Line>> {
    let mut lines = Vec::with_capacity(len);
    // SAFETY: uninitialised memory is a valid `MaybeUninit`, and the capacity is `len`.
    unsafe { lines.set_len(len) };
    lines
}

/// # Safety
/// Every line has been written.
unsafe fn filled(lines: Vec<MaybeUninit<Line>>) -> Vec<Line> {
    let mut lines = std::mem::ManuallyDrop::new(lines);
    // SAFETY: same allocation and layout; the caller has written every element.
    unsafe { Vec::from_raw_parts(lines.as_mut_ptr().cast(), lines.len(), lines.capacity()) }
}

/// Writes `row` times `factor` to every 16th of `lines`: one line of each tile of a panel.
fn round_row(row: &[f32], factor: f32, lines: &mut [MaybeUninit<Line>]) {
    let (blocks, rest) = row.as_chunks::<DEPTH>();
    for (tile, block) in blocks.iter().enumerate() {
        #[cfg(target_arch = "x86_64")]
        if avx512::detected() {
            // SAFETY: the processor can.
            unsafe { avx512::scale(block, factor, &mut lines[tile * SPAN]) };
            continue;
        }
        lines[tile * SPAN].write(round_line(block, factor));
    }
    if !rest.is_empty() {
        let mut block = [0.0; DEPTH];
        block[..rest.len()].copy_from_slice(rest);
        // A factor that is no number must not reach what does not exist.
        let mut line = round_line(&block, factor);
        for (j, pair) in line.0.iter_mut().enumerate() {
            let exists = |step: usize| if step < rest.len() { 0xffff } else { 0 };
            *pair &= exists(2 * j) | exists(2 * j + 1) << 16;
        }
        lines[blocks.len() * SPAN].write(line);
    }
}

fn round_line(block: &[f32; DEPTH], factor: f32) -> Line {
    let value = |step: usize| round(block[step] * factor) as u32;
    Line(std::array::from_fn(|j| value(2 * j) | value(2 * j + 1) << 16))
}

#[derive(Clone, Copy)]
struct SharedLines(*mut MaybeUninit<Line>);

// SAFETY: only a pointer; whoever dereferences it argues that no two tasks write to the same line.
unsafe impl Send for SharedLines {}
// SAFETY: as above.
unsafe impl Sync for SharedLines {}

impl SharedLines {
    fn get(self) -> *mut MaybeUninit<Line> {
        self.0
    }
}

/// Writes a tile that begins at (row, step) `start` and of which `rows` and `steps` exist.
fn fill(source: Source, side: Side, start: [usize; 2], rows: usize, steps: usize, to: &mut [MaybeUninit<Line>; SPAN]) {
    // Not as a pair: that is a load over two fresh stores, which waits for all stores before them.
    #[cfg(target_arch = "x86_64")]
    if rows == SPAN && steps == DEPTH && avx512::detected() {
        match source {
            Source::Matrix(m) if m.column_stride == 1 => {
                let at = &m.values[start[0] * m.row_stride + start[1]..];
                assert!(15 * m.row_stride + DEPTH <= at.len());
                // SAFETY: the processor can; 16 rows of 32 values lie in the slice.
                return unsafe { avx512::along(at.as_ptr(), m.row_stride, side, to) };
            }
            Source::Matrix(m) if m.row_stride == 1 => {
                let at = &m.values[start[0] + start[1] * m.column_stride..];
                assert!(31 * m.column_stride + SPAN <= at.len());
                // SAFETY: the processor can; 32 runs of 16 values lie in the slice.
                return unsafe { avx512::across(at.as_ptr(), m.column_stride, side, to) };
            }
            Source::Matrix(_) => {}
            // Whole panels of 16, so the second panel is there as well.
            Source::Turned(tiles) => {
                let (panel, tile, half) = (start[1] / SPAN, start[0] / DEPTH, start[0] % DEPTH / SPAN);
                let pair = [tiles.from(panel, tile), tiles.from(panel + 1, tile)];
                let pair = pair.map(|lines| lines.first_chunk().expect("a whole tile"));
                // SAFETY: the processor can.
                return unsafe { avx512::turn(pair, half, side, to) };
            }
        }
    }
    let value = |row: usize, step: usize| match source {
        _ if row >= rows || step >= steps => 0,
        Source::Matrix(m) => {
            round(m.values[(start[0] + row) * m.row_stride + (start[1] + step) * m.column_stride]) as u32
        }
        Source::Turned(tiles) => {
            let (row, step) = (start[1] + step, start[0] + row);
            let pair = tiles.from(row / SPAN, step / DEPTH)[row % SPAN].0[step % DEPTH / 2];
            pair >> (16 * (step % 2)) & 0xffff
        }
    };
    for (i, line) in to.iter_mut().enumerate() {
        line.write(Line(std::array::from_fn(|j| {
            let (row, pair) = if side == Side::Left { (i, j) } else { (j, i) };
            value(row, 2 * pair) | value(row, 2 * pair + 1) << 16
        })));
    }
}

/// To the nearest bf16, ties to even; numbers below the smallest normal one become 0, as the processor's conversion has it.
fn round(x: f32) -> u16 {
    let bits = x.to_bits();
    match x.classify() {
        std::num::FpCategory::Nan => (bits >> 16) as u16 | 0x40,
        std::num::FpCategory::Subnormal => (bits >> 16) as u16 & 0x8000,
        _ => ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16,
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Line, SPAN, Side};
    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;
    use std::sync::OnceLock;

    pub(super) fn detected() -> bool {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512bf16")
        })
    }

    type Tile = [MaybeUninit<Line>; SPAN];

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn store(lines: [__m512i; SPAN], to: &mut Tile) {
        for (line, to) in lines.into_iter().zip(to) {
            // SAFETY: a line is 64 writable bytes, aligned to as many.
            unsafe { _mm512_store_si512(to.as_mut_ptr().cast(), line) };
        }
    }

    /// Two runs of 16 bf16 in one vector to 16 pairs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn pair(runs: __m512i) -> __m512i {
        let order = _mm512_set_epi16(
            31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17,
            1, 16, 0,
        );
        _mm512_permutexvar_epi16(order, runs)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn bits(x: __m512bh) -> __m512i {
        // SAFETY: both are 64 plain bytes.
        unsafe { std::mem::transmute(x) }
    }

    /// 16 rows of 32 steps, `stride` apart.
    ///
    /// # Safety
    /// The rows can be read, and the processor has the instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn along(from: *const f32, stride: usize, side: Side, to: &mut Tile) {
        let mut lines = [_mm512_setzero_si512(); SPAN];
        for (i, line) in lines.iter_mut().enumerate() {
            // SAFETY: the caller's.
            let (low, high) = unsafe {
                let row = from.add(i * stride);
                (_mm512_loadu_ps(row), _mm512_loadu_ps(row.add(16)))
            };
            *line = bits(_mm512_cvtne2ps_pbh(high, low));
        }
        store(if side == Side::Left { lines } else { transpose(lines) }, to);
    }

    /// One line: 32 steps of a row, times a factor.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn scale(block: &[f32; 2 * SPAN], factor: f32, to: &mut MaybeUninit<Line>) {
        let factor = _mm512_set1_ps(factor);
        // SAFETY: 32 readable values, and a line of 64 writable bytes, aligned to as many.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(block.as_ptr()), _mm512_loadu_ps(block.as_ptr().add(SPAN)));
            let line = _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, factor), _mm512_mul_ps(low, factor));
            _mm512_store_si512(to.as_mut_ptr().cast(), bits(line));
        }
    }

    /// 32 steps of 16 rows, `stride` apart.
    ///
    /// # Safety
    /// The steps can be read, and the processor has the instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn across(from: *const f32, stride: usize, side: Side, to: &mut Tile) {
        let mut lines = [_mm512_setzero_si512(); SPAN];
        for (i, line) in lines.iter_mut().enumerate() {
            // SAFETY: the caller's.
            let (low, high) = unsafe {
                let step = from.add(2 * i * stride);
                (_mm512_loadu_ps(step), _mm512_loadu_ps(step.add(stride)))
            };
            *line = pair(bits(_mm512_cvtne2ps_pbh(high, low)));
        }
        store(if side == Side::Right { lines } else { transpose(lines) }, to);
    }

    /// The rows of two tiles, one below the other, as steps; of their steps the first or second half as rows.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn turn(tiles: [&[Line; SPAN]; 2], half: usize, side: Side, to: &mut Tile) {
        let mut lines = [_mm512_setzero_si512(); SPAN];
        for (i, line) in lines.iter_mut().enumerate() {
            let tile = &tiles[i / 8][2 * (i % 8)..];
            let [low, high] = [0, 1].map(|row| {
                // SAFETY: half a line is 32 readable bytes.
                unsafe { _mm256_loadu_si256(tile[row].0[8 * half..8 * half + 8].as_ptr().cast()) }
            });
            *line = pair(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high));
        }
        store(if side == Side::Right { lines } else { transpose(lines) }, to);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn transpose(mut x: [__m512i; SPAN]) -> [__m512i; SPAN] {
        let mut y = [_mm512_setzero_si512(); SPAN];
        // Neighbouring rows, then pairs of them, then 128-bit lanes at distance 1 and 2.
        for i in 0..8 {
            y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
            y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
        }
        for i in 0..4 {
            let (a, b, c, d) = (y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
            x[4 * i] = _mm512_unpacklo_epi64(a, c);
            x[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
            x[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
            x[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
        }
        for i in 0..4 {
            for j in 0..2 {
                let (a, b) = (x[8 * j + i], x[8 * j + i + 4]);
                y[8 * j + i] = _mm512_shuffle_i32x4::<0x88>(a, b);
                y[8 * j + i + 4] = _mm512_shuffle_i32x4::<0xdd>(a, b);
            }
        }
        for i in 0..8 {
            x[i] = _mm512_shuffle_i32x4::<0x88>(y[i], y[i + 8]);
            x[i + 8] = _mm512_shuffle_i32x4::<0xdd>(y[i], y[i + 8]);
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tiles: &Tiles, row: usize, step: usize) -> f32 {
        let (i, j) = (row % SPAN, step % DEPTH / 2);
        let (i, j) = if tiles.side == Side::Left { (i, j) } else { (j, i) };
        let pair = tiles.from(row / SPAN, step / DEPTH)[i].0[j];
        f32::from_bits(pair >> (16 * (step % 2)) << 16)
    }

    #[test]
    fn every_layout_holds_the_rounded_values_and_zeros_around_them() {
        for (rows, steps) in [(1, 1), (16, 32), (33, 70), (70, 33), (160, 600)] {
            // 24 bits of mantissa, so that rounding has something to do; some ties.
            let values: Vec<f32> =
                (0..rows * steps).map(|i| (i as f32 * 0.731).sin() * (1.0 + (i % 7) as f32 * 0.003_906_25)).collect();
            let stored_turned: Vec<f32> = (0..rows * steps).map(|i| values[i % rows * steps + i / rows]).collect();
            let (along, across) = (Matrix::new(&values, rows, steps), Matrix::new(&stored_turned, steps, rows).t());
            for side in [Side::Left, Side::Right] {
                let factor = |m: Matrix<'_>| Tiles::new(if side == Side::Left { m } else { m.t() }, side, Threads::All);
                let left = Tiles::new(across.t(), Side::Left, Threads::One);
                for tiles in [factor(along), factor(across), left.turned(side, Threads::All)] {
                    for row in 0..rows.next_multiple_of(2 * SPAN) {
                        for step in 0..steps.next_multiple_of(DEPTH) {
                            let expected = match row < rows && step < steps {
                                true => f32::from_bits((round(values[row * steps + step]) as u32) << 16),
                                false => 0.0,
                            };
                            assert_eq!(value(&tiles, row, step), expected, "{rows} {steps} {side:?} {row} {step}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_made_and_scaled_on_the_way() {
        for (rows, depth) in [(1, 1), (16, 32), (33, 70), (50, 64)] {
            let mut values: Vec<f32> = (0..rows * depth).map(|i| (i as f32 * 0.731).sin()).collect();
            let factor = |row: usize| if row == 7 { f32::NAN } else { 1.0 + row as f32 };
            let expected: Vec<f32> = (0..rows * depth).map(|i| -values[i] * factor(i / depth)).collect();
            let expected = Tiles::new(Matrix::new(&expected, rows, depth), Side::Left, Threads::One);
            let mut numbers = vec![0; rows];
            let found = Tiles::of_values(&mut values, depth, &mut numbers, |row, values, number| {
                values.iter_mut().for_each(|x| *x = -*x);
                *number = row;
                factor(row)
            });
            assert_eq!(numbers, (0..rows).collect::<Vec<_>>());
            assert_eq!((found.span, found.depth, found.lines.len()), (rows, depth, expected.lines.len()));
            for (found, expected) in found.lines.iter().zip(&expected.lines) {
                for (found, expected) in found.0.iter().zip(expected.0) {
                    let [found, expected] = [*found, expected].map(|p| [p << 16, p & 0xffff_0000].map(f32::from_bits));
                    for (found, expected) in found.iter().zip(expected) {
                        assert!(*found == expected || found.is_nan() && expected.is_nan(), "{found} {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even_and_keeps_what_is_no_number() {
        let special =
            [1.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1.003907, -0.0, 3.4e38, f32::INFINITY, f32::NAN, 1e-39, -1e-39];
        let rounded = [1.0, 1.0, 1.015625, 1.0078125, -0.0, f32::INFINITY, f32::INFINITY, f32::NAN, 0.0, -0.0];
        // A whole tile takes the vector path, a smaller matrix the plain one.
        for rows in [16, 15] {
            let values: Vec<f32> = (0..rows * 32).map(|i| special[i % special.len()]).collect();
            let tiles = Tiles::new(Matrix::new(&values, rows, 32), Side::Left, Threads::One);
            for i in 0..rows * 32 {
                let (found, expected) = (value(&tiles, i / 32, i % 32), rounded[i % special.len()]);
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "{} became {found}", values[i]);
            }
        }
    }
}
