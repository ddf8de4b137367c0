//! FinalMLP as ONNX operators.

use super::graph::Graph;
use crate::final_mlp::STREAMS;
use crate::{FinalMlp, ModelSpec};

impl Graph {
    /// The fusion of both towers over their gated inputs, `[rows, 1]`.
    pub(super) fn final_mlp(&mut self, spec: &ModelSpec, final_mlp: &FinalMlp, x0: &str) -> String {
        let [first, second] = [0, 1].map(|stream| {
            let name = STREAMS[stream];
            let x = match final_mlp.gates.is_some() {
                true => {
                    let gate = self.feature_gate(spec, final_mlp, stream, x0);
                    self.node("Mul", &[x0, &gate], &format!("{name}.x"))
                }
                false => x0.to_owned(),
            };
            self.hidden(name, final_mlp.hidden(stream), &final_mlp.tower, &x)
        });
        let product = self.products_of_heads(final_mlp, &first);
        let products = self.node("Mul", &[&product, &second], "fusion.products");
        let products = self.sum_over_axis_1(&products, "fusion.products_sum", true);
        let of_first = self.node("Gemm", &[&first, "fusion.first.weight", "fusion.bias"], "fusion.of_first");
        self.attribute("transB", 1);
        let of_second = self.node("Gemm", &[&second, "fusion.second.weight"], "fusion.of_second");
        self.attribute("transB", 1);
        let linear = self.node("Add", &[&of_first, &of_second], "fusion.linear");
        self.node("Add", &[&linear, &products], "fusion.logit")
    }

    /// The gate of a tower: `[rows, width]`, or `[1, width]` with a learnt context.
    fn feature_gate(&mut self, spec: &ModelSpec, final_mlp: &FinalMlp, stream: usize, x0: &str) -> String {
        let (name, context) = (format!("{}_gate", STREAMS[stream]), final_mlp.context(stream));
        let mut x = format!("{name}.context");
        if !context.is_empty() {
            let columns = context.iter().flat_map(|&slot| spec.slot_at(slot)..spec.slot_at(slot) + spec.dim_of(slot));
            let columns: Vec<i64> = columns.map(|column| column as i64).collect();
            let columns = self.integers(&format!("{name}.columns"), &columns);
            x = self.node("Gather", &[x0, &columns], &x);
            self.attribute("axis", 1);
        }
        let hidden = final_mlp.gates.as_ref().map_or(0, |gates| gates.hidden.len());
        for l in 0..hidden {
            let y = self.layer(&format!("{name}.{l}"), &x);
            x = self.node("Relu", &[&y], &format!("{name}.{l}.x"));
        }
        let y = self.layer(&format!("{name}.{hidden}"), &x);
        let sigmoid = self.node("Sigmoid", &[&y], &format!("{name}.sigmoid"));
        let two = self.floats(&format!("{name}.two"), &[2.0]);
        self.node("Mul", &[&sigmoid, &two], &format!("{name}.gate"))
    }

    /// For each head `W_h o1_h`, one after the other, `[rows, second]`.
    fn products_of_heads(&mut self, final_mlp: &FinalMlp, first: &str) -> String {
        let weight = "fusion.product.weight";
        if final_mlp.heads == 1 {
            let product = self.node("Gemm", &[first, weight], "fusion.product");
            self.attribute("transB", 1);
            return product;
        }
        let [inputs, outputs] = final_mlp.output_widths().map(|width| width / final_mlp.heads);
        let numbers = |head: usize, count: usize| -> Vec<i64> {
            (head * count..(head + 1) * count).map(|number| number as i64).collect()
        };
        let heads: Vec<String> = (0..final_mlp.heads)
            .map(|head| {
                let columns = self.integers(&format!("fusion.columns.{head}"), &numbers(head, inputs));
                let own = self.node("Gather", &[first, &columns], &format!("fusion.first.{head}"));
                self.attribute("axis", 1);
                let rows = self.integers(&format!("fusion.rows.{head}"), &numbers(head, outputs));
                let own_weight = self.node("Gather", &[weight, &rows], &format!("fusion.weight.{head}"));
                self.attribute("axis", 0);
                let product = self.node("Gemm", &[&own, &own_weight], &format!("fusion.product.{head}"));
                self.attribute("transB", 1);
                product
            })
            .collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let product = self.node("Concat", &heads, "fusion.product");
        self.attribute("axis", 1);
        product
    }
}
