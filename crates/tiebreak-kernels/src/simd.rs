//! Instruction sets chosen at run time, and the arithmetic that loops share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// How the native loops are compiled, or that they are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    /// AVX-512 (F, BW, DQ, VL).
    Avx512 = 1,
    /// AVX2 and FMA.
    Avx2 = 2,
    /// What the target has by itself.
    Plain = 3,
    /// No native path: every operation is composed of tensor operations.
    Off = 4,
}

static FORCED: AtomicU8 = AtomicU8::new(0);

/// The level in use: what [`force`] said, else `TIEBREAK_SIMD` = `avx512`, `avx2`, `plain` or `off`, else the best the
/// processor has. A level the processor lacks becomes the best it has; a word that [`asked`] refuses counts as none.
pub fn level() -> Level {
    static CHOSEN: OnceLock<Level> = OnceLock::new();
    match FORCED.load(Ordering::Relaxed) {
        1 => Level::Avx512,
        2 => Level::Avx2,
        3 => Level::Plain,
        4 => Level::Off,
        _ => *CHOSEN.get_or_init(|| at_most(asked().unwrap_or(Level::Avx512))),
    }
}

/// What `TIEBREAK_SIMD` asks for.
///
/// # Errors
/// The message, for a word that it does not know.
pub fn asked() -> Result<Level, String> {
    match std::env::var_os("TIEBREAK_SIMD").as_deref().map(|word| word.to_string_lossy()).as_deref() {
        None | Some("" | "avx512") => Ok(Level::Avx512),
        Some("avx2") => Ok(Level::Avx2),
        Some("plain") => Ok(Level::Plain),
        Some("off") => Ok(Level::Off),
        Some(word) => Err(format!("TIEBREAK_SIMD={word}: unknown; use avx512, avx2, plain or off, or unset it")),
    }
}

/// Uses a level from now on, in the whole process (`None`: as at the start). For tests and benches.
pub fn force(level: Option<Level>) {
    FORCED.store(level.map_or(0, |l| at_most(l) as u8), Ordering::Relaxed);
}

fn at_most(asked: Level) -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match asked {
            Level::Avx512 if avx512 => Level::Avx512,
            Level::Avx512 | Level::Avx2 if avx2 => Level::Avx2,
            Level::Off => Level::Off,
            _ => Level::Plain,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    match asked {
        Level::Off => Level::Off,
        _ => Level::Plain,
    }
}

/// Compiles one body three times and picks by [`level`]. Inside, `FMA` says whether a fused multiply-add is one instruction.
macro_rules! simd {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<const FMA: bool>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    body::<true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    body::<true>($($arg),*)
                }
                match $crate::simd::level() {
                    // SAFETY: `level` names a set only if the processor has it.
                    $crate::simd::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    _ => {}
                }
            }
            body::<{ cfg!(target_arch = "aarch64") }>($($arg),*)
        }
    };
}
pub(crate) use simd;

/// a b + c, rounded once where that is one instruction (elsewhere it would be a library call).
#[inline(always)]
pub(crate) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// e^x for x up to 88 (taken as 88 above); 0 below -87; NaN stays NaN. Relative error below 2e-7.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    // x = n ln 2 + r. Adding 1.5 2^23 leaves n in the low bits, rounded to nearest.
    const SHIFT: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = mul_add::<FMA>(n, -LN2_LOW, mul_add::<FMA>(n, -LN2_HIGH, x));
    // Minimax for (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, 3.3e-9 relative to e^r before rounding.
    let p = mul_add::<FMA>(1.381_314_5e-3, r, 8.369_419e-3);
    let p = mul_add::<FMA>(p, r, 4.166_845_6e-2);
    let p = mul_add::<FMA>(p, r, 1.666_651_5e-1);
    let p = mul_add::<FMA>(p, r, 4.999_999_4e-1);
    let p = mul_add::<FMA>(p * r, r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.0 { 0.0 } else { p * power }
}

/// Independent sums in flight, so that a loop vectorises; folded by a fixed tree.
pub(crate) const LANES: usize = 32;

#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of f over the elements.
#[inline(always)]
pub(crate) fn sum1(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] += f(block[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f(*x);
    }
    fold(lanes)
}

/// Sum of f over pairs of elements; the slices are equally long.
#[inline(always)]
pub(crate) fn sum2(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        for i in 0..LANES {
            lanes[i] += f(x[i], y[i]);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(x_rest).zip(y_rest) {
        *lane += f(*x, *y);
    }
    fold(lanes)
}

/// Sum of f over triples of elements; the slices are equally long.
#[inline(always)]
pub(crate) fn sum3(x: &[f32], y: &[f32], z: &[f32], f: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let (zs, z_rest) = z.as_chunks::<LANES>();
    for ((x, y), z) in xs.iter().zip(ys).zip(zs) {
        for i in 0..LANES {
            lanes[i] += f(x[i], y[i], z[i]);
        }
    }
    for (((lane, x), y), z) in lanes.iter_mut().zip(x_rest).zip(y_rest).zip(z_rest) {
        *lane += f(*x, *y, *z);
    }
    fold(lanes)
}

/// Replaces x by e^(x - top) and returns the sum.
#[inline(always)]
pub(crate) fn exp_sum<const FMA: bool>(x: &mut [f32], top: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks_mut::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            block[i] = exp::<FMA>(block[i] - top);
            lanes[i] += block[i];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *x = exp::<FMA>(*x - top);
        *lane += *x;
    }
    fold(lanes)
}

/// The largest element; -inf of none. A NaN may be passed over: what it is used for meets the NaN again.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    let keep = |a: f32, b: f32| if a > b { a } else { b };
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = keep(block[i], lanes[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = keep(*x, *lane);
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    simd! {
        fn exp_of(x: f32) -> f32 {
            exp::<FMA>(x)
        }
    }

    #[test]
    fn exp_is_within_its_stated_error_at_every_level() {
        crate::testing::at_every_level(|| {
            for i in -86_000..88_000 {
                let x = i as f32 * 1e-3;
                let exact = (x as f64).exp();
                assert!((exp_of(x) as f64 / exact - 1.0).abs() < 2e-7, "{:?} exp({x})", level());
            }
            assert_eq!(exp_of(0.0), 1.0);
            assert_eq!(exp_of(-1e30), 0.0);
            assert_eq!(exp_of(f32::NEG_INFINITY), 0.0);
            assert!(exp_of(1e30).is_finite() && exp_of(f32::NAN).is_nan());
        });
    }

    #[test]
    fn sums_and_maxima_of_every_length() {
        for n in 0..100 {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 + 11) % 64) as f32).collect();
            assert_eq!(sum1(&x, |x| x), x.iter().sum::<f32>());
            assert_eq!(sum2(&x, &x, |a, b| a * b), x.iter().map(|x| x * x).sum::<f32>());
            assert_eq!(largest(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
