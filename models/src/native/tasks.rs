//! Several labels over a chunk of rows: the stacks that they share, their gates and their towers, forward and backward.

use super::hidden_layers::{Gradients, HiddenLayers, Pass, ToInput, weight_gradient};
use super::kernels;
use super::network::{Layer, TaskLayers};
use super::task_kernels;
use crate::loss::product_logit;

/// The buffers of a micro-batch, kept between steps. `chunk` rows each.
#[derive(Default)]
pub(super) struct TaskBuffers {
    /// The bottom, or the experts.
    shared: Vec<HiddenLayers>,
    /// For each label: the shares of the experts, `[chunk x experts]`, and their mixture, `[chunk x width]`. Empty without gates.
    mixed: Vec<(Vec<f32>, Vec<f32>)>,
    towers: Vec<HiddenLayers>,
    /// For each label: the output of its tower, `[chunk]`, and the loss's gradient by it.
    outputs: Vec<(Vec<f32>, Vec<f32>)>,
    /// Gradients of the outputs of the shared stacks, `[chunk x width]` each.
    by_shared: Vec<Vec<f32>>,
    /// Gradient of a tower's input, `[chunk x width]`, and of its gate, `[chunk x experts]`.
    by_input: (Vec<f32>, Vec<f32>),
}

impl TaskBuffers {
    /// Sets `logits`, `[rows x labels]`, from `x0`.
    pub(super) fn forward(&mut self, pass: &Pass<'_>, tasks: &TaskLayers, x0: &[f32], logits: &mut [f32]) {
        let labels = tasks.towers.len();
        self.shared.resize_with(tasks.shared.len(), Default::default);
        self.towers.resize_with(labels, Default::default);
        self.outputs.resize_with(labels, Default::default);
        self.mixed.resize_with(tasks.gates.len(), Default::default);
        for (e, (stack, layers)) in self.shared.iter_mut().zip(&tasks.shared).enumerate() {
            stack.forward(pass, layers, tasks.spec.first_of_shared(e), x0);
        }
        for (gate, (shares, mixture)) in tasks.gates.iter().zip(&mut self.mixed) {
            let experts = gate.outputs;
            shares.resize(pass.rows * experts, 0.0);
            let (weight, bias) = (&pass.params[gate.weight.clone()], &pass.params[gate.bias.clone()]);
            task_kernels::gate(x0, weight, bias, shares);
            mixture.resize(pass.rows * tasks.width, 0.0);
            for (e, expert) in self.shared.iter().enumerate() {
                task_kernels::mix(shares, experts, e, expert.output(x0), mixture, tasks.width);
            }
        }
        for (k, (head, layers)) in tasks.towers.iter().filter_map(|tower| tower.split_last()).enumerate() {
            let input = input_of(k, &self.mixed, &self.shared, x0);
            self.towers[k].forward(pass, layers, tasks.spec.first_of_tower(k), input);
            let output = &mut self.outputs[k].0;
            output.clear();
            output.resize(logits.len() / labels, 0.0);
            let last = self.towers[k].output(input);
            kernels::head(last, &pass.params[head.weight.clone()], pass.params[head.bias.start], output);
        }
        for (row, logits) in logits.chunks_exact_mut(labels).enumerate() {
            for (logit, (output, _)) in logits.iter_mut().zip(&self.outputs) {
                *logit = output[row];
            }
            if let ([click, conversion], true) = (logits, tasks.spec.is_esmm()) {
                *conversion = product_logit(*click, *conversion).0;
            }
        }
    }

    /// The backward pass from `dlogits`, `[rows x labels]`: adds to the gradients of the parameters, and sets `dx` to the gradient of the
    /// embeddings, the first `embedded` numbers of each row of `x0`.
    pub(super) fn backward(
        &mut self,
        pass: &Pass<'_>,
        tasks: &TaskLayers,
        x0: &[f32],
        dlogits: &[f32],
        grads: &mut Gradients<'_>,
        dx: &mut [f32],
    ) {
        let (n, width, embedded) = (pass.rows, tasks.width, pass.net.embedded());
        self.split_gradients(tasks, dlogits);
        dx.fill(0.0);
        self.by_shared.resize_with(self.shared.len(), Vec::new);
        for by_output in &mut self.by_shared {
            by_output.clear();
            by_output.resize(n * width, 0.0);
        }
        for (k, (head, layers)) in tasks.towers.iter().filter_map(|tower| tower.split_last()).enumerate() {
            let input = input_of(k, &self.mixed, &self.shared, x0);
            let by_output = &self.outputs[k].1;
            let last = self.towers[k].output(input);
            kernels::head_weight(by_output, last, &mut grads.params[head.weight.clone()]);
            grads.params[head.bias.start] += by_output.iter().sum::<f32>();
            grads.deltas[0].resize(n * head.inputs, 0.0);
            kernels::head_input(by_output, &pass.params[head.weight.clone()], &mut grads.deltas[0]);
            let to_input = match (tasks.gates.get(k), self.by_shared.first_mut()) {
                (Some(_), _) => {
                    self.by_input.0.resize(n * width, 0.0);
                    ToInput { to: &mut self.by_input.0, columns: width, adds: false }
                }
                (None, Some(by_bottom)) => ToInput { to: by_bottom, columns: width, adds: true },
                (None, None) => ToInput { to: dx, columns: embedded, adds: true },
            };
            self.towers[k].backward(pass, layers, input, grads, to_input);
            if let Some(gate) = tasks.gates.get(k) {
                self.gate_backward(pass, (k, gate), x0, grads, dx);
            }
        }
        for (e, (stack, layers)) in self.shared.iter().zip(&tasks.shared).enumerate() {
            std::mem::swap(&mut grads.deltas[0], &mut self.by_shared[e]);
            stack.backward(pass, layers, x0, grads, ToInput { to: dx, columns: embedded, adds: true });
        }
    }

    /// From the gradient of a label's mixture, in `by_input`, to the gradients of the experts' outputs and of the label's gate.
    fn gate_backward(
        &mut self,
        pass: &Pass<'_>,
        (k, gate): (usize, &Layer),
        x0: &[f32],
        grads: &mut Gradients<'_>,
        dx: &mut [f32],
    ) {
        let (n, experts, embedded) = (pass.rows, gate.outputs, pass.net.embedded());
        let (by_mixture, by_gate) = (&self.by_input.0, &mut self.by_input.1);
        let shares = &self.mixed[k].0;
        by_gate.resize(n * experts, 0.0);
        for (e, (expert, by_expert)) in self.shared.iter().zip(&mut self.by_shared).enumerate() {
            let width = by_expert.len() / n.max(1);
            task_kernels::mix_backward(by_mixture, shares, experts, e, expert.output(x0), by_expert, by_gate, width);
        }
        task_kernels::gate_backward(shares, by_gate, &mut grads.params[gate.bias.clone()]);
        weight_gradient(grads.params, gate, by_gate, x0, n, grads.adds, pass.products);
        pass.by_inputs(dx, gate, by_gate, embedded, true);
    }

    /// From the gradient by the logits to the gradient by each tower's output.
    fn split_gradients(&mut self, tasks: &TaskLayers, dlogits: &[f32]) {
        let labels = self.outputs.len();
        for (k, (_, by_output)) in self.outputs.iter_mut().enumerate() {
            by_output.clear();
            by_output.extend(dlogits.iter().skip(k).step_by(labels));
        }
        if let ([(click, by_click), (conversion, by_conversion)], true) = (&mut self.outputs[..], tasks.spec.is_esmm())
        {
            for row in 0..by_click.len() {
                let (_, [to_click, to_conversion]) = product_logit(click[row], conversion[row]);
                by_click[row] += to_click * by_conversion[row];
                by_conversion[row] *= to_conversion;
            }
        }
    }
}

/// The input of the tower of label `k`.
fn input_of<'a>(k: usize, mixed: &'a [(Vec<f32>, Vec<f32>)], shared: &'a [HiddenLayers], x0: &'a [f32]) -> &'a [f32] {
    match (mixed.get(k), shared.first()) {
        (Some((_, mixture)), _) => mixture,
        (None, Some(bottom)) => bottom.output(x0),
        (None, None) => x0,
    }
}
