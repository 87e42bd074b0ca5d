//! What the environment asks for.

use std::path::PathBuf;

use tlc_gpusim::{Options, Schedule};

use crate::description::{Description, version};

/// What goes wrong on purpose, each at its N-th occasion counted from 1.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Faults {
    /// An allocation of device memory finds none.
    pub(crate) allocation: Option<u64>,
    /// A launch fails as `CUDA_ERROR_LAUNCH_FAILED`.
    pub(crate) launch: Option<u64>,
    /// A launch accesses an illegal address.
    pub(crate) illegal_address: Option<u64>,
    /// An error of memory that cannot be corrected is found in a launch.
    pub(crate) ecc: Option<u64>,
    /// The device falls off the bus in a launch.
    pub(crate) device_lost: Option<u64>,
    /// The driver is of another version.
    pub(crate) driver: Option<(u32, u32)>,
}

impl Faults {
    /// Reads `alloc:3,ecc:2`.
    fn parse(text: &str) -> Result<Faults, String> {
        let mut faults = Faults::default();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (what, value) = part.split_once(':').unwrap_or((part, ""));
            let count = || {
                let n = value.parse::<u64>().ok().filter(|&n| n > 0);
                n.ok_or_else(|| format!("TLC_SIM_FAULT: `{part}` wants a number from 1"))
            };
            match what {
                "alloc" => faults.allocation = Some(count()?),
                "launch" => faults.launch = Some(count()?),
                "illegal-address" => faults.illegal_address = Some(count()?),
                "ecc" => faults.ecc = Some(count()?),
                "device-lost" => faults.device_lost = Some(count()?),
                "driver" => {
                    let wrong = || format!("TLC_SIM_FAULT: `{part}` wants a version such as 12.4");
                    faults.driver = Some(version(value).ok_or_else(wrong)?);
                }
                _ => return Err(format!("TLC_SIM_FAULT: there is no fault `{what}`")),
            }
        }
        Ok(faults)
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) devices: Vec<Description>,
    pub(crate) seed: u64,
    /// How kernels run and what of them is checked.
    pub(crate) options: Options,
    /// Whether anything is checked that a real device does not check.
    pub(crate) checks: bool,
    /// Whether a finding makes the context fail.
    pub(crate) findings_fail: bool,
    pub(crate) findings_file: Option<PathBuf>,
    pub(crate) counters_file: Option<PathBuf>,
    pub(crate) report_file: Option<PathBuf>,
    pub(crate) faults: Faults,
    /// Whether devices can reach each other's memory.
    pub(crate) peers: bool,
}

impl Settings {
    /// Reads the environment through `get`.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        // Empty is none of them, unlike not set.
        let visible = get("CUDA_VISIBLE_DEVICES");
        let get = |name: &str| get(name).filter(|v| !v.is_empty());
        let named = get("TLC_SIM_DEVICE").unwrap_or_else(|| "h200".to_string());
        let mut devices = Vec::new();
        for name in named.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            devices.push(Description::of(name).map_err(|e| format!("TLC_SIM_DEVICE: {e}"))?);
        }
        let number = |name: &str| match get(name) {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(format!("{name}: `{text}` is no number")),
            },
        };
        if let Some(memory) = number("TLC_SIM_MEMORY")? {
            devices.iter_mut().for_each(|d| d.memory = memory);
        }
        let faults = Faults::parse(&get("TLC_SIM_FAULT").unwrap_or_default())?;
        if let Some(driver) = faults.driver {
            devices.iter_mut().for_each(|d| d.driver = driver);
        }
        if let Some(visible) = visible {
            devices = visible_devices(&visible, &devices);
        }
        let checks = match get("TLC_SIM_CHECKS").as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => return Err(format!("TLC_SIM_CHECKS: `{other}` is neither on nor off")),
        };
        let peers = match get("TLC_SIM_PEERS").as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => return Err(format!("TLC_SIM_PEERS: `{other}` is neither on nor off")),
        };
        let schedule = match get("TLC_SIM_SCHEDULE").as_deref() {
            None | Some("round-robin") => Schedule::RoundRobin,
            Some("random") => Schedule::Random,
            Some("adversarial") => Schedule::Adversarial,
            Some(other) => {
                return Err(format!(
                    "TLC_SIM_SCHEDULE: `{other}` is none of round-robin, random, adversarial"
                ));
            }
        };
        let findings_fail = match get("TLC_SIM_ON_FINDING").as_deref() {
            None | Some("fail") => true,
            Some("continue") => false,
            Some(other) => return Err(format!("TLC_SIM_ON_FINDING: `{other}` is neither fail nor continue")),
        };
        let seed = number("TLC_SIM_SEED")?.unwrap_or(0);
        let counters_file = get("TLC_SIM_COUNTERS").map(PathBuf::from);
        let base = if checks { Options::default() } else { Options::fast() };
        let mut options = Options {
            schedule,
            seed,
            footprint: checks,
            traffic: checks || counters_file.is_some(),
            lines: counters_file.is_some(),
            ..base
        };
        if let Some(patience) = number("TLC_SIM_PATIENCE")? {
            options.patience = patience;
        }
        Ok(Settings {
            devices,
            seed,
            options,
            checks,
            findings_fail,
            findings_file: get("TLC_SIM_FINDINGS").map(PathBuf::from),
            counters_file,
            report_file: get("TLC_SIM_REPORT").map(PathBuf::from),
            faults,
            peers,
        })
    }
}

/// The devices that a list of numbers names; as the real driver does, what follows a wrong number is not seen.
fn visible_devices(list: &str, devices: &[Description]) -> Vec<Description> {
    let numbers = list.split(',').map(|n| n.trim().parse::<usize>().ok());
    let found = numbers.map_while(|n| devices.get(n?).cloned());
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_and_mistakes_are_named() {
        let read = |pairs: &[(&str, &str)]| {
            let get = |name: &str| pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string());
            Settings::read(get)
        };
        let plain = read(&[]).unwrap();
        assert_eq!(
            (plain.devices.len(), plain.checks, plain.findings_fail),
            (1, true, true)
        );
        let faults = read(&[("TLC_SIM_FAULT", "alloc:2, driver:12.4")]).unwrap();
        assert_eq!(faults.faults.allocation, Some(2));
        assert_eq!(faults.devices[0].driver, (12, 4));
        let two = [
            ("TLC_SIM_DEVICE", "h200,laptop-4gib"),
            ("CUDA_VISIBLE_DEVICES", "1,7,0"),
        ];
        let two = read(&two).unwrap();
        assert_eq!(two.devices.iter().map(|d| d.memory).collect::<Vec<_>>(), [4 << 30]);
        assert_eq!(read(&[("CUDA_VISIBLE_DEVICES", "")]).unwrap().devices, []);
        for (name, value) in [
            ("TLC_SIM_FAULT", "alloc:0"),
            ("TLC_SIM_FAULT", "fire:1"),
            ("TLC_SIM_FAULT", "driver:new"),
            ("TLC_SIM_SEED", "x"),
            ("TLC_SIM_CHECKS", "some"),
            ("TLC_SIM_PEERS", "some"),
            ("TLC_SIM_SCHEDULE", "fair"),
            ("TLC_SIM_ON_FINDING", "cry"),
            ("TLC_SIM_DEVICE", "nosuch"),
        ] {
            let refused = read(&[(name, value)]).unwrap_err();
            assert!(refused.starts_with(name), "{refused}");
        }
    }
}
