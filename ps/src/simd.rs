//! Runs a loop with the widest vectors the CPU has, and fetches memory ahead of its use.
//!
//! [`dispatch`] compiles a [`Kernel`] three times (AVX-512, AVX2, baseline) and picks one while running; LLVM vectorises the loops for
//! each. The crate `pulp` has the same dispatch, and vectors written by hand, which kernels that work element by element do not need. No
//! variant may fuse a multiplication with an addition or reorder a sum, hence **the result does not depend on the vector width**; tests
//! compare the bits.

/// A loop to be compiled once per vector width. Mark `run` and all it calls `#[inline(always)]`.
pub(crate) trait Kernel {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs `kernel` with the widest vectors this CPU has.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("f16c")
        {
            // SAFETY: the CPU has the features, as just asked.
            return unsafe { with_avx512(kernel) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            // SAFETY: the CPU has the features, as just asked.
            return unsafe { with_avx2(kernel) };
        }
    }
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,f16c")]
fn with_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn with_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

/// Runs `body` on each element of slices of one length: `lanes!(w, s; g => { *s += g * g; ... })`, `w` and `s` mutable.
///
/// Blocks of 16, 8 and 4 elements go through local arrays, which LLVM keeps in vector registers; the rest is padded to four with zeros.
/// Rows are too short for the prologue, the alias checks and the scalar tail of a loop of unknown length. Pull + push of rows of 1 and of
/// 10 weights is 1.1 to 1.3 times as fast; 16 weights gain nothing.
macro_rules! lanes {
    ($($m:ident),+; $g:ident => $body:block) => {
        $crate::simd::lanes!(@ 16; $($m),+; $g => $body);
        $crate::simd::lanes!(@ 8; $($m),+; $g => $body);
        $crate::simd::lanes!(@ 4; $($m),+; $g => $body);
        // Two or three elements are left: pad them to four. One alone is not worth the copying.
        if $g.len() > 1 {
            $(let mut $m = ($crate::simd::padded($m), $m);)+
            let $g = $crate::simd::padded($g);
            for k in 0..4 {
                $(let $m = &mut $m.0[k];)+
                let $g = $g[k];
                $body
            }
            $($m.1.copy_from_slice(&$m.0[..$m.1.len()]);)+
        } else if let [$g] = *$g {
            $(let $m = &mut $m[0];)+
            $body
        }
    };
    (@ $n:literal; $($m:ident),+; $g:ident => $body:block) => {
        $(let $m = $m.as_chunks_mut::<$n>();)+
        let $g = $g.as_chunks::<$n>();
        for i in 0..$g.0.len() {
            let at = i;
            $(let mut $m = ($m.0[at], &mut $m.0[at]);)+
            let $g = $g.0[at];
            for k in 0..$n {
                $(let $m = &mut $m.0[k];)+
                let $g = $g[k];
                $body
            }
            $(*$m.1 = $m.0;)+
        }
        $(let $m = $m.1;)+
        let $g = $g.1;
    };
}
pub(crate) use lanes;

/// At most four elements, and zeros.
#[inline(always)]
pub(crate) fn padded(values: &[f32]) -> [f32; 4] {
    std::array::from_fn(|i| values.get(i).copied().unwrap_or(0.0))
}

/// Copies a row: blocks of known length, not a call of memcpy, which a row is too short for.
#[inline(always)]
pub(crate) fn copy(from: &[f32], to: &mut [f32]) {
    debug_assert_eq!(from.len(), to.len());
    lanes!(to; from => { *to = from; });
}

/// Asks for the cache line at `at`. Any address will do: a prefetch never faults.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing the program can see and never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Mix<'a>(&'a mut [f32], &'a [f32]);

    impl Kernel for Mix<'_> {
        type Output = ();
        #[inline(always)]
        fn run(self) {
            for (a, b) in self.0.iter_mut().zip(self.1) {
                *a = *a * 1.1 + b * b / (a.abs().sqrt() + 1e-3);
            }
        }
    }

    #[test]
    fn width_does_not_change_a_bit() {
        let b: Vec<f32> = (0..77).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        let mut wide: Vec<f32> = (0..77).map(|i| (i as f32 * 0.91).cos()).collect();
        let mut plain = wide.clone();
        dispatch(Mix(&mut wide, &b));
        Mix(&mut plain, &b).run();
        assert!(wide.iter().zip(&plain).all(|(x, y)| x.to_bits() == y.to_bits()));
    }
}
