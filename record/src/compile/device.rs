//! What computes a graph.

use std::str::FromStr;

/// A device to compile for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Device {
    /// This machine's processor.
    #[default]
    Cpu,
    /// A GPU of NVIDIA's, by its number among those that the driver shows.
    Cuda(u32),
}

impl Device {
    /// This machine's processor.
    pub const fn cpu() -> Device {
        Device::Cpu
    }

    /// The GPU of that number.
    pub const fn cuda(number: u32) -> Device {
        Device::Cuda(number)
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu => write!(f, "cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// A text that names no device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown device `{0}`; expected cpu, cuda or cuda:N")]
pub struct UnknownDevice(String);

impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Device, UnknownDevice> {
        let unknown = || UnknownDevice(text.into());
        match text.split_once(':') {
            None if text == "cpu" => Ok(Device::Cpu),
            None if text == "cuda" => Ok(Device::Cuda(0)),
            Some(("cuda", number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                number.parse().map(Device::Cuda).map_err(|_| unknown())
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_printed() {
        for device in [Device::cpu(), Device::cuda(0), Device::cuda(11)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::cuda(0)));
        for text in ["", "gpu", "cpu:0", "cuda:", "cuda:+1", "cuda:x", "cuda:99999999999"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }
}
