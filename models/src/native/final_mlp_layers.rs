//! The places of the parameters of FinalMLP in the flat buffer, and of the gates' inputs in `x0`.

use std::ops::Range;

use super::layer::Layer;
use crate::ModelSpec;
use crate::final_mlp::STREAMS;

/// The layers of both towers, of their gates and of the fusion.
#[derive(Debug, Clone)]
pub(super) struct FinalMlpLayers {
    pub(super) streams: [StreamLayers; 2],
    /// For each head W_h, `[second / heads x first / heads]`, without a bias.
    pub(super) heads: Vec<Layer>,
    /// The weights of both outputs, and the place of the bias.
    pub(super) weights: [Range<usize>; 2],
    pub(super) bias: usize,
}

/// A tower and its gate.
#[derive(Debug, Clone)]
pub(super) struct StreamLayers {
    pub(super) gate: Option<GateLayers>,
    pub(super) hidden: Vec<Layer>,
    /// The number of its first hidden layer, of both towers.
    pub(super) first_hidden: usize,
}

/// The perceptron of a gate: its layers, the last with an output for each number of `x0`.
#[derive(Debug, Clone)]
pub(super) struct GateLayers {
    pub(super) context: GateContext,
    pub(super) layers: Vec<Layer>,
}

/// The input of a gate.
#[derive(Debug, Clone)]
pub(super) enum GateContext {
    /// A vector among the parameters.
    Learnt(Range<usize>),
    /// Runs of columns of `x0`: where each begins, and how many.
    Slots(Vec<(usize, usize)>),
}

impl FinalMlpLayers {
    /// `layers` finds the layers by the beginning of their names, `range` a parameter by its name.
    pub(super) fn new(
        spec: &ModelSpec,
        layers: impl Fn(&str) -> Vec<Layer>,
        range: impl Fn(&str) -> Option<Range<usize>>,
    ) -> Option<FinalMlpLayers> {
        let final_mlp = spec.final_mlp.as_ref()?;
        let streams = [0, 1].map(|stream: usize| {
            let name = STREAMS[stream];
            let gate = final_mlp.gates.as_ref().map(|_| GateLayers {
                context: match range(&format!("{name}_gate.context")) {
                    Some(learnt) => GateContext::Learnt(learnt),
                    None => GateContext::Slots(
                        final_mlp.context(stream).iter().map(|&slot| (spec.slot_at(slot), spec.dim_of(slot))).collect(),
                    ),
                },
                layers: layers(&format!("{name}_gate.")),
            });
            let first_hidden = final_mlp.first_hidden(stream);
            StreamLayers { gate, hidden: layers(&format!("{name}.")), first_hidden }
        });
        let whole = layers("fusion.product.").pop()?;
        let outputs = whole.outputs / final_mlp.heads;
        let head = |head: usize| {
            let from = whole.weight.start + head * outputs * whole.inputs;
            Layer { weight: from..from + outputs * whole.inputs, outputs, ..whole.clone() }
        };
        Some(FinalMlpLayers {
            streams,
            heads: (0..final_mlp.heads).map(head).collect(),
            weights: [range("fusion.first.weight")?, range("fusion.second.weight")?],
            bias: range("fusion.bias")?.start,
        })
    }

    /// All layers that are matrix products, in the order of their parameters.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Layer> {
        let of_streams = self
            .streams
            .iter()
            .flat_map(|stream| stream.gate.iter().flat_map(|gate| &gate.layers).chain(&stream.hidden));
        of_streams.chain(&self.heads)
    }
}
