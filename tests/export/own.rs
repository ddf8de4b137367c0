//! A model of a program's own: its dense part is refused as ONNX, its table is exported.

use forebay::models::{DenseOptimizer, ModelError, ModelSpec, NativeModel};
use forebay::pipelines::{Context, ExportParts, OwnModel};
use forebay::{Model, Registry, Training};

use crate::common;
use crate::rows::{job, rows};

fn tiny() -> OwnModel {
    let spec = ModelSpec::ctr_dnn(9, 8, 4, &[8]);
    OwnModel::new(spec.parts(), move || -> Result<_, ModelError> {
        NativeModel::new(spec.clone(), DenseOptimizer::adam(1e-2), 3, 1)
    })
}

#[test]
fn the_table_of_an_own_model_is_exported_and_its_dense_part_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let context = Context::new(Registry::default().own_model("tiny", |_| tiny()));
    let job = job(&rows(dir.path(), 0, 1000), &["model={ kind = 'own', name = 'tiny' }"]);
    let model = Training::builder(job).context(&context).run().unwrap().model;
    let to = dir.path().join("export");
    let said = model.export(to.as_path(), ExportParts::All, false).unwrap_err().to_string();
    assert!(said.contains("own model `tiny`") && said.contains("--tables-only"), "{said}");
    assert!(!to.exists());
    let manifest = model.export(to.as_path(), ExportParts::Tables, false).unwrap();
    assert!(manifest.onnx.is_none() && manifest.rows > 100, "{manifest:?}");
    let parts: Vec<(&str, usize)> = manifest.parts.iter().map(|part| (part.name.as_str(), part.dim)).collect();
    assert_eq!(parts, [("embedding", 4)]);
    assert_eq!(to.join("tables/embedding/embedding.npy").metadata().unwrap().len(), manifest.parts[0].file.bytes);

    // The program without the model says whose it is.
    let folder = dir.path().join("model");
    model.save(folder.as_path()).unwrap();
    assert_eq!(Model::load_with(folder.as_path(), 2, &context).unwrap().version().unwrap(), model.version().unwrap());
    let to = dir.path().join("by the program");
    let arguments = ["export", "--model", folder.to_str().unwrap(), "--to", to.to_str().unwrap()];
    common::exits(2, common::run(&arguments), &["`tiny`, which this program does not have"]);
}
