//! The weights of a model's layers, packed once for all products of a step of `MatmulPrecision::High`.

use std::collections::HashMap;

use super::amx::{PackedRight, supports_right};
use super::gemm::Products;
use super::layer::weight;
use super::matrix::MatrixView;
use super::network::{Layer, Network};
use super::workers::Workers;

/// Packed weights by the place of the weight in the parameters. The buffers are kept from step to step.
#[derive(Default)]
pub(super) struct StepWeights(HashMap<usize, [PackedRight; 2]>);

impl StepWeights {
    /// Packs the weights of all layers that suit this machine, each as it is and transposed.
    pub(super) fn pack(&mut self, net: &Network, params: &[f32], workers: &Workers) {
        let suited =
            |layer: &&Layer| [weight(params, layer), weight(params, layer).t()].into_iter().all(supports_right);
        let layers: HashMap<usize, &Layer> =
            net.hidden().filter(suited).map(|layer| (layer.weight.start, layer)).collect();
        layers.keys().for_each(|&start| _ = self.0.entry(start).or_default());
        let tasks = self.0.iter_mut().flat_map(|(start, [plain, transposed])| {
            let weight = weight(params, layers[start]);
            [(plain, weight), (transposed, weight.t())]
        });
        // Packing takes about half a nanosecond a weight.
        let threads = workers.worth(net.len());
        workers.each(threads, tasks.collect(), |(packed, weight)| packed.pack(weight));
    }

    /// The output of a layer; false if the weight of the layer is not packed.
    pub(super) fn forward(&self, out: &mut [f32], layer: &Layer, x: MatrixView<'_>, products: Products) -> bool {
        let packed = self.0.get(&layer.weight.start);
        packed
            .map(|[_, packed]| packed.matmul(out, (layer.outputs, layer.outputs), x, false, products.threads))
            .is_some()
    }

    /// The gradient by the first `columns` inputs of a layer, or, if `add`, the sum of it and `out`; false if the weight of the layer is
    /// not packed.
    pub(super) fn backward(
        &self,
        out: &mut [f32],
        layer: &Layer,
        by_output: MatrixView<'_>,
        (columns, add): (usize, bool),
        products: Products,
    ) -> bool {
        let packed = self.0.get(&layer.weight.start);
        packed.map(|[packed, _]| packed.matmul(out, (columns, columns), by_output, add, products.threads)).is_some()
    }
}
