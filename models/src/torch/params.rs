//! The parameters: one flat tensor, and a leaf of autograd for each parameter, which is a view of it.
//!
//! So an optimizer step is a few passes for any number of parameters, and a snapshot is one copy.

use tch::nn::VarStore;
use tch::{Kind, TchError, Tensor};

use crate::params::{Param, from_tensors, refuse_unknown, to_tensors};
use crate::{ModelError, NamedTensor};

pub(super) struct Params {
    pub(super) layout: Vec<Param>,
    /// `[count]`, on the device; no gradient.
    pub(super) flat: Tensor,
    /// A leaf for each entry of `layout`: the same memory, with a gradient.
    pub(super) leaves: Vec<Tensor>,
    /// Other tensors of a user's module, running means for instance. Saved and loaded, not trained.
    buffers: Vec<NamedBuffer>,
}

struct NamedBuffer {
    name: String,
    tensor: Tensor,
}

impl Params {
    /// Leaves over the layout, with these values.
    pub(super) fn new(layout: Vec<Param>, values: &[f32], device: tch::Device) -> Result<Params, TchError> {
        let flat = Tensor::f_from_slice(values)?.f_to_device(device)?;
        let leaves = layout
            .iter()
            .map(|param| param_view(&flat, param)?.f_detach()?.f_set_requires_grad(true))
            .collect::<Result<_, _>>()?;
        Ok(Params { layout, flat, leaves, buffers: Vec::new() })
    }

    /// Moves the variables of a store into one flat tensor. The module that holds them sees no change.
    pub(super) fn from_store(store: &VarStore) -> Result<Params, ModelError> {
        let mut variables: Vec<(String, Tensor)> = store.variables().into_iter().collect();
        // The store's own order is a hash map's.
        variables.sort_by(|a, b| a.0.cmp(&b.0));
        if let Some((name, tensor)) = variables.iter().find(|(_, tensor)| tensor.f_kind().ok() != Some(Kind::Float)) {
            return Err(ModelError::Module(format!("variable {name} is {:?}, expected Float", tensor.f_kind()?)));
        }
        let (trained, kept): (Vec<_>, Vec<_>) = variables.into_iter().partition(|(_, tensor)| tensor.requires_grad());
        let mut layout = Vec::new();
        let mut end = 0;
        for (name, tensor) in &trained {
            let shape: Vec<usize> = tensor.size().iter().map(|&size| size as usize).collect();
            let len: usize = shape.iter().product();
            layout.push(Param::at(name.clone(), shape, end..end + len));
            end += len;
        }
        let flat = Tensor::f_zeros([end as i64], (Kind::Float, store.device()))?;
        let mut leaves = Vec::new();
        for (param, (_, mut tensor)) in layout.iter().zip(trained) {
            let mut place = param_view(&flat, param)?;
            place.f_copy_(&tensor.f_detach()?)?;
            tensor.f_set_data(&place)?;
            leaves.push(tensor);
        }
        let buffers = kept.into_iter().map(|(name, tensor)| NamedBuffer { name, tensor }).collect();
        Ok(Params { layout, flat, leaves, buffers })
    }

    /// The number of trained values.
    pub(super) fn count(&self) -> i64 {
        self.flat.numel() as i64
    }

    /// The gradients of the leaves side by side, as `flat` has them; zeros where the loss does not depend on a leaf.
    pub(super) fn flat_gradient(&self, grads: &[Tensor]) -> Result<Tensor, TchError> {
        if grads.is_empty() {
            return self.flat.f_zeros_like();
        }
        let pieces = grads
            .iter()
            .zip(&self.leaves)
            .map(
                |(grad, leaf)| if grad.defined() { grad.f_reshape([-1]) } else { leaf.f_zeros_like()?.f_reshape([-1]) },
            )
            .collect::<Result<Vec<_>, _>>()?;
        Tensor::f_cat(&pieces, 0)
    }

    /// The first parameter whose range of `flat` is not finite.
    pub(super) fn first_non_finite(&self, flat: &Tensor) -> Result<Option<&str>, TchError> {
        for param in &self.layout {
            if !all_finite(&param_view(flat, param)?)? {
                return Ok(Some(&param.name));
            }
        }
        Ok(None)
    }

    pub(super) fn save(&self) -> Result<Vec<NamedTensor>, TchError> {
        let mut tensors = to_tensors(&self.layout, "", &to_vec(&self.flat)?);
        for NamedBuffer { name, tensor } in &self.buffers {
            let shape = tensor.size().iter().map(|&size| size as usize).collect();
            tensors.push(NamedTensor { name: name.clone(), shape, data: to_vec(tensor)? });
        }
        Ok(tensors)
    }

    /// Checks everything before it changes anything.
    pub(super) fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), ModelError> {
        let mut known: Vec<String> = self.layout.iter().map(|param| param.name.clone()).collect();
        known.extend(self.buffers.iter().map(|buffer| buffer.name.clone()));
        refuse_unknown(&known, tensors)?;
        let values = from_tensors(&self.layout, "", tensors)?;
        let mut buffers = Vec::new();
        for NamedBuffer { name, tensor } in &self.buffers {
            let shape: Vec<usize> = tensor.size().iter().map(|&size| size as usize).collect();
            let param = Param::at(name.clone(), shape, 0..tensor.numel());
            buffers.push(from_tensors(&[param], "", tensors)?);
        }
        self.flat.f_copy_(&Tensor::f_from_slice(&values)?)?;
        for (NamedBuffer { tensor, .. }, values) in self.buffers.iter_mut().zip(&buffers) {
            let values = Tensor::f_from_slice(values)?.f_view(tensor.size().as_slice())?;
            tch::no_grad(|| tensor.f_copy_(&values))?;
        }
        Ok(())
    }

    /// Copies of the buffers, for [`Params::restore_buffers`] if the step fails.
    pub(super) fn copy_buffers(&self) -> Result<Vec<Tensor>, TchError> {
        self.buffers.iter().map(|buffer| buffer.tensor.f_detach_copy()).collect()
    }

    pub(super) fn restore_buffers(&mut self, copies: &[Tensor]) -> Result<(), TchError> {
        tch::no_grad(|| self.buffers.iter_mut().zip(copies).try_for_each(|(buffer, copy)| buffer.tensor.f_copy_(copy)))
    }
}

fn param_view(flat: &Tensor, param: &Param) -> Result<Tensor, TchError> {
    let shape: Vec<i64> = param.shape.iter().map(|&size| size as i64).collect();
    flat.f_narrow(0, param.range.start as i64, param.range.len() as i64)?.f_view(shape.as_slice())
}

/// Copies the numbers to the host. Waits for the device.
pub(super) fn to_vec(tensor: &Tensor) -> Result<Vec<f32>, TchError> {
    let mut numbers = vec![0.0; tensor.numel()];
    tensor.f_copy_data(&mut numbers, tensor.numel())?;
    Ok(numbers)
}

/// Waits for the device.
pub(super) fn all_finite(tensor: &Tensor) -> Result<bool, TchError> {
    Ok(tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0)
}
