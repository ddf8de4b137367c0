//! The device that libtorch computes on, as text in a job and as a value.

use std::fmt;
use std::str::FromStr;

use crate::ModelError;

/// A device of libtorch, as written in a job: `cpu`, `cuda` (the same as `cuda:0`), `cuda:1` and so on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// A CUDA device, by its number among those that are visible.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Device, ModelError> {
        let number = match text {
            "cpu" => return Ok(Device::Cpu),
            "cuda" => Some(0),
            // Not `parse` alone: it also takes "+1".
            _ => text
                .strip_prefix("cuda:")
                .filter(|n| n.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|n| n.parse().ok()),
        };
        number
            .map(Device::Cuda)
            .ok_or_else(|| ModelError::Setting(format!("device {text:?} is unknown, expected \"cpu\" or \"cuda:0\"")))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl Device {
    /// The same for tch, if the device exists.
    pub(super) fn open(self) -> Result<tch::Device, ModelError> {
        match self {
            Device::Cpu => Ok(tch::Device::Cpu),
            Device::Cuda(number) => {
                let count = if tch::Cuda::is_available() { tch::Cuda::device_count().max(0) as usize } else { 0 };
                if number < count {
                    return Ok(tch::Device::Cuda(number));
                }
                Err(ModelError::Setting(format!(
                    "device {self} was asked for, but libtorch sees {count} CUDA devices: put the lib folder of an installed \
                     torch {} with CUDA on LD_LIBRARY_PATH, or use \"cpu\"",
                    super::LIBTORCH
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_parse_and_print_the_same() {
        for (text, device) in [("cpu", Device::Cpu), ("cuda:0", Device::Cuda(0)), ("cuda:12", Device::Cuda(12))] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        for text in ["", "CPU", "gpu", "cuda:", "cuda:x", "cuda:+1", "cuda:-1", "cuda:99999999999999999999"] {
            let error = text.parse::<Device>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?} is unknown")), "{error}");
        }
    }

    #[test]
    fn a_missing_device_says_what_to_do() {
        let error = Device::Cuda(4096).open().unwrap_err().to_string();
        assert!(error.contains("cuda:4096") && error.contains("LD_LIBRARY_PATH"), "{error}");
    }
}
