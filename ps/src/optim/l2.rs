//! L2 regularization: the gradient of `l2 / 2 * w²`, which is added to the gradient of the loss.

/// The gradient of a weight with its L2 term, if `L2`.
#[inline(always)]
pub(crate) fn with_l2<const L2: bool>(g: f32, w: f32, l2: f32) -> f32 {
    if L2 { g + l2 * w } else { g }
}
