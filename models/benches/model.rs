//! What a training step costs: CPU seconds per million rows, and its share of the matrix products alone.
//!
//! `cargo bench -p forebay-models` measures the native backend; with `--features torch`, libtorch beside it. The models
//! have Criteo's shape: 26 slots, 13 dense features; keys are skewed, so that about half of a large batch's are unique.
//! Each line also runs the same products (`x W`, `dy W'`, `x' dy` of every layer) and nothing else, on one thread in the same
//! run. `FOREBAY_BENCH_ONLY=WORD` keeps to lines with the word. Nothing passes or fails on a time.
#![allow(clippy::print_stdout, reason = "a bench prints")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use forebay_base::{mix64, unit_f64};
use forebay_models::{
    Activation, AttentionPair, Cross, DenseModel, DenseOptimizer, MatmulPrecision, ModelError, ModelSpec, NativeModel,
    Norm, Pooling, StepOutput,
};
use gemm::Parallelism;
use support::Owned;

const SLOTS: usize = 26;
const DENSE: usize = 13;
const HIDDEN: [usize; 3] = [400, 400, 400];
/// Time given to each line.
const SPAN: Duration = Duration::from_millis(1500);

/// User and system time of this process, in seconds, to 10 ms.
fn cpu_seconds() -> f64 {
    forebay_base::cpu_seconds().unwrap_or(f64::NAN)
}

/// CPU and wall seconds of one call, over as many as fill the span.
fn per_call(mut call: impl FnMut()) -> (f64, f64) {
    call();
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    let mut calls = 0.0;
    while wall.elapsed() < SPAN {
        call();
        calls += 1.0;
    }
    ((cpu_seconds() - cpu) / calls, wall.elapsed().as_secs_f64() / calls)
}

fn numbers(count: usize, salt: u64) -> Vec<f32> {
    (0..count as u64).map(|i| (mix64(i.wrapping_mul(31) ^ salt) >> 40) as f32 / (1u32 << 24) as f32 - 0.5).collect()
}

/// Each slot's value is key `r^3` of its own `rows`, `r` uniform: half of the values are among the first eighth.
fn inverse(rows: usize) -> (Vec<u32>, usize) {
    let mut places = std::collections::HashMap::new();
    let inverse = (0..rows * SLOTS)
        .map(|i| {
            let r = unit_f64(mix64(i as u64 + 1));
            let key = (i % SLOTS, (r * r * r * rows as f64) as usize);
            let next = places.len() as u32;
            *places.entry(key).or_insert(next)
        })
        .collect();
    (inverse, places.len())
}

/// The products of a training step over the tower, each as one call on one thread.
struct Products {
    rows: usize,
    widths: Vec<usize>,
    buffers: [Vec<f32>; 3],
}

impl Products {
    fn new(rows: usize, input: usize) -> Products {
        let widths = [&[input], HIDDEN.as_slice()].concat();
        let widest = widths.iter().copied().fold(0, usize::max);
        let buffer = |salt| numbers(widest * rows.max(widest), salt);
        Products { rows, widths, buffers: [buffer(1), buffer(2), buffer(3)] }
    }

    fn flops(&self) -> f64 {
        self.widths.windows(2).map(|pair| 6.0 * (self.rows * pair[0] * pair[1]) as f64).sum()
    }

    fn run(&mut self) {
        let rows = self.rows;
        let [out, a, b] = &mut self.buffers;
        for pair in self.widths.windows(2) {
            let (i, o) = (pair[0], pair[1]);
            sgemm(out, a, b, (rows, i, o), (false, true));
            sgemm(out, a, b, (rows, o, i), (false, false));
            sgemm(out, a, b, (o, rows, i), (true, false));
        }
    }
}

/// `out[m x n] = a[m x k] b[k x n]`, each row-major or, where `transposed`, its transpose row-major.
fn sgemm(out: &mut [f32], a: &[f32], b: &[f32], (m, k, n): (usize, usize, usize), transposed: (bool, bool)) {
    assert!(out.len() >= m * n && a.len() >= m * k && b.len() >= k * n);
    let strides = |rows: usize, cols: usize, t: bool| if t { (rows as isize, 1) } else { (1, cols as isize) };
    let ((a_col, a_row), (b_col, b_row)) = (strides(m, k, transposed.0), strides(k, n, transposed.1));
    // SAFETY: the assertion checked that all three matrices lie within their slices; `out` is borrowed mutably.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            a_col,
            a_row,
            b.as_ptr(),
            b_col,
            b_row,
            0.0f32,
            1.0f32,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// A batch whose numbers are made up, and how many keys it has.
struct Made {
    batch: Owned,
    unique: usize,
}

impl Made {
    fn new(spec: &ModelSpec, rows: usize) -> Made {
        let (inverse, unique) = inverse(rows);
        let labels = (0..rows as u64).map(|row| f32::from(mix64(row).is_multiple_of(4))).collect();
        let (dense, unique_rows) = (numbers(rows * DENSE, 5), numbers(unique * spec.row_dim(), 6));
        let (weights, offsets, value_weights) = (None, None, None);
        let batch = Owned { id: 0, rows, labels, weights, dense, unique_rows, inverse, offsets, value_weights };
        Made { batch, unique }
    }

    /// The same with this number of values in the last slot: a history, of keys of the slot before it.
    fn with_history(self, values: usize) -> Made {
        let (mut inverse, mut offsets) = (Vec::new(), vec![0]);
        let values_of_rows = &self.batch.inverse;
        for (r, row) in values_of_rows.chunks_exact(SLOTS).enumerate() {
            for (slot, &value) in row.iter().enumerate() {
                let others = (1..=values).map(|i| values_of_rows[(r + i * 37) % self.batch.rows * SLOTS + SLOTS - 2]);
                if slot + 1 < SLOTS {
                    inverse.push(value)
                } else {
                    inverse.extend(others)
                }
                offsets.push(inverse.len() as u32);
            }
        }
        Made { batch: Owned { inverse, offsets: Some(offsets), ..self.batch }, ..self }
    }
}

/// One line: the same step by `transfer`, one part after the other, and what the parts beside compute take.
#[cfg(feature = "torch")]
fn in_parts(name: &str, spec: &ModelSpec, rows: usize, model: &mut dyn DenseModel) -> Result<(), ModelError> {
    if std::env::var("FOREBAY_BENCH_ONLY").is_ok_and(|only| !name.contains(&only)) {
        return Ok(());
    }
    let made = Made::new(spec, rows);
    let (batch, mut out) = (made.batch.view(), StepOutput::default());
    let mut upload = model.uploader()?.expect("libtorch's model has one");
    let (mut up, mut down) = (Duration::ZERO, Duration::ZERO);
    let mut steps = 0;
    let (cpu, wall) = per_call(|| {
        let start = Instant::now();
        let uploaded = upload.upload(&batch, None).expect("the batch fits");
        up += start.elapsed();
        let launched = model.launch(uploaded).expect("the batch is the model's");
        let start = Instant::now();
        launched.wait(&batch, &mut out).expect("all is finite");
        down += start.elapsed();
        steps += 1;
    });
    let per_row = |span: Duration| span.as_secs_f64() * 1e9 / (f64::from(steps) * rows as f64);
    println!(
        "{name:38} batch {rows:5}, {:6} unique: {:7.3} CPU s per million rows, {:9.0} rows/s; upload {:.0} ns a row, wait {:.0}",
        made.unique,
        cpu * 1e6 / rows as f64,
        rows as f64 / wall,
        per_row(up),
        per_row(down),
    );
    Ok(())
}

/// One line: a model's step, and if `products`, the matrix products beside it.
fn line(
    name: &str,
    spec: &ModelSpec,
    rows: usize,
    model: &mut dyn DenseModel,
    products: bool,
) -> Result<(), ModelError> {
    if std::env::var("FOREBAY_BENCH_ONLY").is_ok_and(|only| !name.contains(&only)) {
        return Ok(());
    }
    step(name, spec, &Made::new(spec, rows), model, products)
}

/// The same over a batch that is there.
fn step(
    name: &str,
    spec: &ModelSpec,
    made: &Made,
    model: &mut dyn DenseModel,
    products: bool,
) -> Result<(), ModelError> {
    let (batch, unique, rows) = (made.batch.view(), made.unique, made.batch.rows);
    let mut out = StepOutput::default();
    model.train(&batch, &mut out)?;
    let (cpu, wall) = per_call(|| model.train(&batch, &mut out).expect("the first step went well"));
    let per_million = |seconds: f64| seconds * 1e6 / rows as f64;
    print!(
        "{name:38} batch {rows:5}, {unique:6} unique: {:7.3} CPU s per million rows, {:9.0} rows/s",
        per_million(cpu),
        rows as f64 / wall
    );
    if products {
        let mut products = Products::new(rows, spec.input_width());
        let (pure, _) = per_call(|| products.run());
        let speed = products.flops() / pure / 1e9;
        print!("; products {:7.3} ({speed:.0} GFLOP/s), {:.0}% of the step", per_million(pure), 100.0 * pure / cpu);
    }
    println!();
    Ok(())
}

fn main() -> Result<(), ModelError> {
    let adam = DenseOptimizer::adam(1e-3);
    let tower = ModelSpec::ctr_dnn(SLOTS, DENSE, 10, &HIDDEN);
    for rows in [512, 4096] {
        for threads in [1, 2] {
            let mut model = NativeModel::new(tower.clone(), adam, 1, threads)?;
            line(&format!("native ctr-dnn 273-400x3, {threads} threads"), &tower, rows, &mut model, true)?;
        }
    }
    for (precision, name) in [(MatmulPrecision::High, "high"), (MatmulPrecision::Highest, "highest")] {
        let mut model = NativeModel::new(tower.clone(), adam, 1, 1)?.with_matmul_precision(precision);
        line(&format!("native precision {name}, ctr-dnn 273-400x3"), &tower, 4096, &mut model, true)?;
    }
    for (name, spec) in [
        ("relu", tower.clone()),
        ("gelu", tower.clone().with_activation(Activation::Gelu)),
        ("silu", tower.clone().with_activation(Activation::Silu)),
        ("prelu", tower.clone().with_activation(Activation::Prelu)),
        ("dropout", tower.clone().with_dropout(0.2)),
        ("layer norm", tower.clone().with_norm(Norm::Layer)),
    ] {
        let mut model = NativeModel::new(spec.clone(), adam, 1, 1)?;
        line(&format!("native tower 273-400x3, {name}"), &spec, 4096, &mut model, false)?;
    }
    let small = [
        ("lr", ModelSpec::lr(SLOTS, DENSE)),
        ("fm 16", ModelSpec::fm(SLOTS, DENSE, 16)),
        ("dcn 10 x 2", ModelSpec::builder(SLOTS, DENSE).with_embedding(10).with_cross(2)),
        ("dcn 16 x 3", cross(None)),
        ("dcn 16 x 3, rank 128", cross(Some(128))),
        ("dcn 16 x 3, rank 64", cross(Some(64))),
        ("dcn 16 x 3, rank 32", cross(Some(32))),
    ];
    for (name, spec) in &small {
        line(&format!("native {name}, 1 thread"), spec, 4096, &mut NativeModel::new(spec.clone(), adam, 1, 1)?, false)?;
    }
    histories(adam)?;
    torch(&tower, &small, adam)
}

/// Cross layers alone, over embeddings of 16 numbers.
fn cross(rank: Option<usize>) -> ModelSpec {
    ModelSpec::builder(SLOTS, DENSE).with_embedding(16).with_cross_network(Cross { rank, ..Cross::new(3) })
}

/// A slot with 50 values in each row: pooled, and with attention to the slot before it.
fn histories(adam: DenseOptimizer) -> Result<(), ModelError> {
    let (pair, hidden) = (AttentionPair { history: SLOTS - 1, target: SLOTS - 2 }, &HIDDEN);
    let plain = ModelSpec::ctr_dnn(SLOTS, DENSE, 16, hidden);
    let din = |unit: &[usize]| ModelSpec::din(SLOTS, DENSE, 16, &[pair], unit, hidden);
    let mut sigmoid = din(&[80, 40]);
    sigmoid.attention.iter_mut().for_each(|attention| attention.unit.activation = Activation::Sigmoid);
    for (name, spec) in [
        ("lr", ModelSpec::lr(SLOTS, DENSE)),
        ("ctr_dnn, sum", plain.clone()),
        ("ctr_dnn, mean", plain.clone().with_pooling(Pooling::Mean)),
        ("ctr_dnn, max", plain.with_pooling(Pooling::Max)),
        ("din 64", din(&[64])),
        ("din 80-40, sigmoid", sigmoid),
    ] {
        let name = format!("native history of 50, {name}");
        if std::env::var("FOREBAY_BENCH_ONLY").is_ok_and(|only| !name.contains(&only)) {
            continue;
        }
        let made = Made::new(&spec, 4096).with_history(50);
        let mut model = NativeModel::new(spec.clone(), adam, 1, 1)?;
        step(&name, &spec, &made, &mut model, false)?;
    }
    Ok(())
}

#[cfg(not(feature = "torch"))]
fn torch(_: &ModelSpec, _: &[(&str, ModelSpec)], _: DenseOptimizer) -> Result<(), ModelError> {
    Ok(())
}

#[cfg(feature = "torch")]
fn torch(tower: &ModelSpec, small: &[(&str, ModelSpec)], adam: DenseOptimizer) -> Result<(), ModelError> {
    use forebay_models::torch::{Device, TorchModel};
    for rows in [512, 4096] {
        for threads in [1, 2] {
            let mut model = TorchModel::new(tower.clone(), adam, 1, threads, Device::Cpu)?;
            line(&format!("torch ctr-dnn 273-400x3, {threads} threads"), tower, rows, &mut model, true)?;
        }
        let mut model = TorchModel::new(tower.clone(), adam, 1, 1, Device::Cpu)?;
        in_parts("torch ctr-dnn 273-400x3, in three parts", tower, rows, &mut model)?;
    }
    for (name, spec) in small {
        let mut model = TorchModel::new(spec.clone(), adam, 1, 1, Device::Cpu)?;
        line(&format!("torch {name}, 1 thread"), spec, 4096, &mut model, false)?;
    }
    Ok(())
}
