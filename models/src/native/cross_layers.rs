//! Where the parameters of a cross network are.

use super::layer::Layer;

/// The layers in their order.
#[derive(Debug, Clone)]
pub(super) struct CrossLayers {
    pub(super) layers: Vec<CrossLayer>,
    /// The linear output; `None` if the tower is stacked on the last layer.
    pub(super) head: Option<Layer>,
}

/// One layer: `x0 * (W x + b) + x`.
#[derive(Debug, Clone)]
pub(super) struct CrossLayer {
    /// `[rank x width]`, if W is `U V`. It has no bias.
    pub(super) v: Option<Layer>,
    /// W, or U: `[width x rank]`; and b.
    pub(super) w: Layer,
}

impl CrossLayers {
    /// Takes the layers of a cross network in the order of their parameters, and returns `None` for a model that has no cross layers.
    pub(super) fn new(mut layers: Vec<Layer>, has_rank: bool, has_head: bool) -> Option<CrossLayers> {
        let head = has_head.then(|| layers.pop()).flatten();
        let mut layers = layers.into_iter();
        let mut of_cross = Vec::new();
        while let Some(first) = layers.next() {
            let (v, w) = if has_rank { (Some(first), layers.next()?) } else { (None, first) };
            of_cross.push(CrossLayer { v, w });
        }
        (!of_cross.is_empty()).then_some(CrossLayers { layers: of_cross, head })
    }

    /// All layers but the head, in the order of their parameters.
    pub(super) fn inner(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().flat_map(|layer| layer.v.iter().chain([&layer.w]))
    }
}
