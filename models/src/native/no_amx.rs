//! In the place of `amx/`, for other processors and systems.

use super::matrix::MatrixView;

#[cfg(test)]
pub(super) fn is_available() -> bool {
    false
}

pub(super) fn supports(_: MatrixView<'_>, _: MatrixView<'_>) -> bool {
    false
}

pub(super) fn supports_right(_: MatrixView<'_>) -> bool {
    false
}

pub(super) fn matmul(_: &mut [f32], _: usize, _: MatrixView<'_>, _: MatrixView<'_>, _: bool, _: usize) {
    unreachable!("no product suits this machine")
}

#[derive(Default)]
pub(super) struct PackedRight;

impl PackedRight {
    pub(super) fn pack(&mut self, _: MatrixView<'_>) {
        unreachable!("no factor suits this machine")
    }

    pub(super) fn matmul(&self, _: &mut [f32], _: (usize, usize), _: MatrixView<'_>, _: bool, _: usize) {
        unreachable!("no factor suits this machine")
    }
}
