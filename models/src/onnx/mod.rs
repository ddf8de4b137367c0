//! The dense part of a model as ONNX, operator set 13: pooled table rows and dense features go in, logit and probability come out. Runtimes
//! have had every operator of it for years.

mod final_mlp;
mod graph;
mod messages;

use prost::Message as _;

use self::graph::Graph;
use self::messages::{GraphProto, ModelProto, OperatorSetIdProto};
use crate::dense::NO_VECTORS;
use crate::{ModelError, ModelSpec, NamedTensor, TowerSide, params};

/// The version of the format's messages.
const IR_VERSION: i64 = 8;
/// The version of the operators.
const OPERATORS: i64 = 13;
/// The largest message of protobuf, in bytes.
const MOST_BYTES: usize = i32::MAX as usize;

/// The dense part of a model as the bytes of an ONNX file. `tensors` are all parameters of `spec`; `correction` is added to the
/// logit.
///
/// Inputs, each float32 and there only if the model has the part: `linear` `[rows, slots]`, the pooled linear weights; `embedding` `[rows,
/// slots, embedding_dim]`, the pooled embeddings; `dense` `[rows, dense]`, the transformed dense features. Outputs: `logit` and
/// `probability`, `[rows]`, or `[rows, labels]` for several labels; for two towers also `user_vector` and `item_vector`, `[rows,
/// vector_dim]`.
///
/// # Errors
/// [`ModelError::Spec`] and [`ModelError::Load`] if spec and tensors are no model; [`ModelError::Setting`] if they are larger than
/// an ONNX file may be, 2 GiB.
pub fn to_onnx(spec: &ModelSpec, tensors: &[NamedTensor], correction: f32) -> Result<Vec<u8>, ModelError> {
    let tensors = checked(spec, tensors)?;
    Ok(encoded(Graph::of(spec, &tensors, correction)))
}

/// One of two towers as the bytes of an ONNX file, for a program that has only users, or only items. `tensors` are all parameters of
/// `spec`.
///
/// Inputs, each float32: `embedding` `[rows, slots of the tower, embedding_dim]` and, if the tower has any, `dense` `[rows, dense features
/// of the tower]`. Output: `user_vector` or `item_vector`, `[rows, vector_dim]`.
///
/// # Errors
/// As [`to_onnx`]; [`ModelError::Setting`] if the model has no two towers.
pub fn tower_to_onnx(spec: &ModelSpec, tensors: &[NamedTensor], side: TowerSide) -> Result<Vec<u8>, ModelError> {
    let tensors = checked(spec, tensors)?;
    let two = spec.two_towers.as_ref().ok_or_else(|| ModelError::Setting(NO_VECTORS.into()))?;
    Ok(encoded(Graph::of_tower(spec, two, side, &tensors)))
}

/// The parameters in the order of the layout, so that the same model gives the same bytes.
fn checked(spec: &ModelSpec, tensors: &[NamedTensor]) -> Result<Vec<NamedTensor>, ModelError> {
    spec.validate()?;
    let layout = params::layout(spec);
    let values = params::from_tensors(&layout, "", tensors)?;
    if values.len() * size_of::<f32>() > MOST_BYTES {
        return Err(ModelError::Setting(format!(
            "{} dense parameters are more than an ONNX file can hold, {} bytes",
            values.len(),
            MOST_BYTES
        )));
    }
    Ok(params::to_tensors(&layout, "", &values))
}

fn encoded(graph: GraphProto) -> Vec<u8> {
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "forebay".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPERATORS }],
    };
    model.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DenseModel as _, DenseOptimizer, NativeModel};

    #[test]
    fn the_graph_has_the_parts_of_the_spec_and_no_others() {
        let parameters = |spec: &ModelSpec| {
            NativeModel::new(spec.clone(), DenseOptimizer::sgd(0.1), 1, 1).expect("a valid spec").parameters()
        };
        let names = |spec: ModelSpec| {
            let bytes = to_onnx(&spec, &parameters(&spec), 0.0).expect("a model");
            let graph = ModelProto::decode(bytes.as_slice()).expect("a message").graph.expect("a graph");
            let inputs: Vec<String> = graph.input.into_iter().map(|input| input.name).collect();
            let operators: Vec<String> = graph.node.into_iter().map(|node| node.op_type).collect();
            (inputs.join(" "), operators.join(" "))
        };
        assert_eq!(names(ModelSpec::lr(3, 0)), ("linear".into(), "ReduceSum Add Squeeze Sigmoid".into()));
        assert_eq!(names(ModelSpec::ctr_dnn(3, 2, 4, &[5])).0, "embedding dense");
        let (inputs, operators) = names(ModelSpec::wide_deep(3, 2, 4, &[5]).with_cross(1).with_fm());
        assert_eq!(inputs, "linear embedding dense");
        assert_eq!(operators.matches("Gemm").count(), 5, "{operators}");
        let spec = ModelSpec::ctr_dnn(3, 2, 4, &[5]);
        let wrong = to_onnx(&spec, &parameters(&ModelSpec::ctr_dnn(3, 2, 4, &[6])), 0.0).unwrap_err().to_string();
        assert!(wrong.contains("tower.0.weight has shape [6, 14]"), "{wrong}");
    }
}
