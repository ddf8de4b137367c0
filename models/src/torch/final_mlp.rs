//! FinalMLP on libtorch: two gated towers and the fusion of their outputs.

use tch::{Kind, TchError, Tensor};

use super::layer::{Leaves, TorchLayer};
use crate::{FinalMlp, ModelSpec};

/// The leaves of both towers, of their gates and of the fusion.
pub(super) struct FinalMlpModule {
    streams: [StreamModule; 2],
    heads: i64,
    /// `[second, first / heads]`.
    product: Tensor,
    /// `[1, first]` and `[1, second]`.
    weights: [Tensor; 2],
    bias: Tensor,
}

struct StreamModule {
    gate: Option<GateModule>,
    hidden: Vec<TorchLayer>,
    first_hidden: usize,
}

struct GateModule {
    /// `[1, embedding_dim]`, unless the gate reads slots.
    learnt: Option<Tensor>,
    /// Columns of `x0`: where each slot begins, and its width.
    slots: Vec<(i64, i64)>,
    layers: Vec<TorchLayer>,
}

impl FinalMlpModule {
    pub(super) fn new(spec: &ModelSpec, final_mlp: &FinalMlp, leaves: &mut Leaves<'_>) -> FinalMlpModule {
        let streams = [0, 1].map(|stream| {
            let context = final_mlp.context(stream);
            let gate = final_mlp.gates.as_ref().map(|gates| GateModule {
                learnt: context.is_empty().then(|| leaves.next()),
                slots: context.iter().map(|&slot| (spec.slot_at(slot) as i64, spec.dim_of(slot) as i64)).collect(),
                layers: (0..=gates.hidden.len()).map(|_| leaves.layer(None)).collect(),
            });
            let hidden = leaves.stack(final_mlp.hidden(stream).len(), &final_mlp.tower, false);
            StreamModule { gate, hidden, first_hidden: final_mlp.first_hidden(stream) }
        });
        let heads = final_mlp.heads as i64;
        FinalMlpModule {
            streams,
            heads,
            product: leaves.next(),
            weights: [leaves.next(), leaves.next()],
            bias: leaves.next(),
        }
    }

    /// `[n, 1]`. `hidden` computes hidden layers over an input, given the number of the first of them.
    pub(super) fn logits(
        &self,
        x0: &Tensor,
        hidden: impl Fn(&[TorchLayer], usize, &Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let output = |stream: &StreamModule| {
            let input = match &stream.gate {
                Some(gate) => x0.f_mul(&gate.of(x0)?)?,
                None => x0.shallow_clone(),
            };
            hidden(&stream.hidden, stream.first_hidden, &input)
        };
        let (first, second) = (output(&self.streams[0])?, output(&self.streams[1])?);
        // For each head [n, first / heads] times [first / heads, second / heads].
        let (n, heads) = (first.size()[0], self.heads);
        let own = first.f_view([n, heads, -1])?.f_transpose(0, 1)?;
        let weight = self.product.f_view([heads, -1, self.product.size()[1]])?.f_transpose(1, 2)?;
        let product = own.f_bmm(&weight)?.f_transpose(0, 1)?.f_reshape([n, -1])?;
        let products = product.f_mul(&second)?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?;
        let [of_first, of_second] = &self.weights;
        let of_first = first.f_linear(of_first, Some(&self.bias))?;
        of_first.f_add(&second.f_linear(of_second, None::<&Tensor>)?)?.f_add(&products)
    }
}

impl GateModule {
    /// `[n, width]`, or `[1, width]` with a learnt context.
    fn of(&self, x0: &Tensor) -> Result<Tensor, TchError> {
        let mut x = match &self.learnt {
            Some(learnt) => learnt.shallow_clone(),
            None => {
                let slots = self.slots.iter().map(|&(from, count)| x0.f_narrow(1, from, count));
                Tensor::f_cat(&slots.collect::<Result<Vec<_>, _>>()?, 1)?
            }
        };
        for (l, layer) in self.layers.iter().enumerate() {
            let y = layer.apply(&x)?;
            x = if l + 1 < self.layers.len() { y.f_relu()? } else { y.f_sigmoid()?.f_mul_scalar(2.0)? };
        }
        Ok(x)
    }
}
