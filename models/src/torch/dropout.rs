//! Dropout on tensors: the units that the native backend drops, computed on the device.

use forebay_base::GOLDEN_GAMMA;
use tch::{Device, Kind, TchError, Tensor};

use crate::dropout::Dropout;

/// The factors of a layer's outputs in a training step, `[rows, units]`: 0 or `1 / (1 - rate)`. See [`Dropout`].
pub(super) fn factors(
    dropout: &Dropout,
    stream: u64,
    rows: i64,
    units: i64,
    device: Device,
) -> Result<Tensor, TchError> {
    const LOW: i64 = 0xffff_ffff;
    let half = (units + 1) / 2;
    // Word n of the stream is mix64 of the seed + (n + 1) gamma. Integers of tensors wrap as on the host.
    let mut words = Tensor::f_arange_start(1, rows * half + 1, (Kind::Int64, device))?;
    let _ = words.f_mul_scalar_(GOLDEN_GAMMA as i64)?.f_add_scalar_(stream as i64)?;
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb), (31, 1u64)] {
        // The shift of a signed number brings in copies of its sign; the mask takes them out.
        let shifted = words.f_bitwise_right_shift_tensor_scalar(shift)?.f_bitwise_and((1i64 << (64 - shift)) - 1)?;
        let _ = words.f_bitwise_xor_tensor_(&shifted)?;
        if factor != 1 {
            let _ = words.f_mul_scalar_(factor as i64)?;
        }
    }
    let words = words.f_view([rows, half])?;
    let high = words.f_bitwise_right_shift_tensor_scalar(32)?.f_bitwise_and(LOW)?;
    let bits = Tensor::f_cat(&[words.f_bitwise_and(LOW)?, high], 1)?.f_narrow(1, 0, units)?;
    bits.f_ge(i64::from(dropout.below))?.f_to_kind(Kind::Float)?.f_mul_scalar(f64::from(dropout.scale))
}
