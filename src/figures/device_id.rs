//! Which device of this machine is meant.

use crate::error::{Error, Result};
use std::fmt;

/// A device, by the name that PyTorch has for it: `cpu`, `cuda:0`, `cuda:1` and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceId {
    /// The CPU and its memory.
    Cpu,
    /// The GPU of this index.
    Cuda(u32),
}

impl DeviceId {
    /// The device of this name; `None` if it is no device's.
    pub fn parse(name: &str) -> Option<DeviceId> {
        if name == "cpu" {
            return Some(DeviceId::Cpu);
        }
        let index = name.strip_prefix("cuda:")?;
        // `u32::from_str` would also take a plus sign.
        let index = index.parse().ok().filter(|_| !index.starts_with('+'));
        index.map(DeviceId::Cuda)
    }

    /// The same where `cuda` alone is the first GPU, as for PyTorch.
    pub fn parse_or_first(name: &str) -> Option<DeviceId> {
        match name {
            "cuda" => Some(DeviceId::Cuda(0)),
            _ => DeviceId::parse(name),
        }
    }

    /// As records and models of devices call it: `cpu` or `cuda`.
    pub fn kind(self) -> &'static str {
        match self {
            DeviceId::Cpu => "cpu",
            DeviceId::Cuda(_) => "cuda",
        }
    }

    /// The device of this name. The error says what it was looked for: a device `what`.
    pub fn named(name: &str, what: &str) -> Result<DeviceId> {
        DeviceId::parse(name).ok_or_else(|| {
            Error::InvalidInput(format!(
                "there is no device '{name}' {what}: say 'cpu', 'cuda:0', 'cuda:1' and so on"
            ))
        })
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Cpu => f.write_str("cpu"),
            DeviceId::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_name() {
        for (name, device) in [
            ("cpu", DeviceId::Cpu),
            ("cuda:0", DeviceId::Cuda(0)),
            ("cuda:31", DeviceId::Cuda(31)),
        ] {
            assert_eq!(DeviceId::parse(name), Some(device));
            assert_eq!(DeviceId::parse_or_first(name), Some(device));
            assert_eq!(device.to_string(), name);
        }
        assert_eq!(DeviceId::parse("cuda"), None);
        let first = DeviceId::parse_or_first("cuda");
        assert_eq!(first, Some(DeviceId::Cuda(0)));
    }

    #[test]
    fn other_names_are_refused_with_what_was_looked_for() {
        for bad in [
            "",
            "cpu:0",
            "xpu",
            "tpu",
            "2",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda: 1",
            "cuda:x",
            "CUDA:1",
            "cuda:4294967296",
        ] {
            assert_eq!(DeviceId::parse_or_first(bad), None, "{bad}");
            let why = DeviceId::named(bad, "with a pool").unwrap_err().to_string();
            let told = format!("there is no device '{bad}' with a pool: say 'cpu', 'cuda:0'");
            assert!(why.contains(&told), "{why}");
        }
    }
}
