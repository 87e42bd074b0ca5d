//! What a simulated device is like: a file of `key = value` lines, as TOML writes them.

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Description {
    pub(crate) name: String,
    /// Compute capability: major and minor.
    pub(crate) capability: (u32, u32),
    pub(crate) multiprocessors: u32,
    /// Bytes of device memory.
    pub(crate) memory: u64,
    pub(crate) shared_per_block: u32,
    pub(crate) shared_per_block_optin: u32,
    pub(crate) shared_per_multiprocessor: u32,
    pub(crate) registers_per_block: u32,
    pub(crate) registers_per_multiprocessor: u32,
    pub(crate) threads_per_block: u32,
    pub(crate) threads_per_multiprocessor: u32,
    pub(crate) blocks_per_multiprocessor: u32,
    pub(crate) l2_cache: u32,
    pub(crate) clock_khz: u32,
    pub(crate) memory_clock_khz: u32,
    pub(crate) memory_bus_bits: u32,
    /// Whether memory may come and go in the order of streams.
    pub(crate) has_memory_pools: bool,
    /// The newest version of CUDA that its driver knows: major and minor.
    pub(crate) driver: (u32, u32),
}

/// The devices that need no file.
const BUILT_IN: [(&str, &str); 3] = [
    ("h200", include_str!("../devices/h200.toml")),
    ("a100", include_str!("../devices/a100.toml")),
    ("laptop-4gib", include_str!("../devices/laptop-4gib.toml")),
];

impl Description {
    /// The device of a name, or of a file.
    pub(crate) fn of(named: &str) -> Result<Description, String> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(name, _)| name.eq_ignore_ascii_case(named)) {
            return Description::parse(text);
        }
        let text = std::fs::read_to_string(named).map_err(|e| {
            let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            format!("`{named}` is no device ({}) and no file: {e}", names.join(", "))
        })?;
        Description::parse(&text).map_err(|e| format!("{named}: {e}"))
    }

    pub(crate) fn parse(text: &str) -> Result<Description, String> {
        let mut values: Vec<(&str, &str)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key, value) = line
                .split_once('=')
                .ok_or_else(|| format!("line {}: `key = value` is expected", index + 1))?;
            let value = value.trim();
            // A comment after a number; strings are taken whole.
            let value = if value.starts_with('"') {
                value
            } else {
                value.split('#').next().unwrap_or_default().trim()
            };
            values.push((key.trim(), value));
        }
        let take = |values: &mut Vec<(&str, &str)>, key: &str| {
            let at = values.iter().position(|(k, _)| *k == key);
            at.map(|i| values.remove(i).1.to_string())
                .ok_or_else(|| format!("`{key}` is missing"))
        };
        let text_of = |values: &mut Vec<(&str, &str)>, key: &str| {
            let value = take(values, key)?;
            let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
            inner
                .map(str::to_string)
                .ok_or_else(|| format!("`{key}` is a string in quotation marks, not {value}"))
        };
        let long = |values: &mut Vec<(&str, &str)>, key: &str| {
            let value = take(values, key)?;
            let number = value.replace('_', "").parse::<u64>();
            number.map_err(|_| format!("`{key}` is a number, not {value}"))
        };
        let number = |values: &mut Vec<(&str, &str)>, key: &str| {
            let value = long(values, key)?;
            i32::try_from(value)
                .map(|v| v as u32)
                .map_err(|_| format!("`{key}` is too large: {value}"))
        };
        let pair = |values: &mut Vec<(&str, &str)>, key: &str| {
            let value = text_of(values, key)?;
            version(&value).ok_or_else(|| format!("`{key}` is like \"9.0\", not \"{value}\""))
        };
        let v = &mut values;
        let description = Description {
            name: text_of(v, "name")?,
            capability: pair(v, "capability")?,
            multiprocessors: number(v, "multiprocessors")?.max(1),
            memory: long(v, "memory")?,
            shared_per_block: number(v, "shared_per_block")?,
            shared_per_block_optin: number(v, "shared_per_block_optin")?,
            shared_per_multiprocessor: number(v, "shared_per_multiprocessor")?,
            registers_per_block: number(v, "registers_per_block")?,
            registers_per_multiprocessor: number(v, "registers_per_multiprocessor")?,
            threads_per_block: number(v, "threads_per_block")?,
            threads_per_multiprocessor: number(v, "threads_per_multiprocessor")?,
            blocks_per_multiprocessor: number(v, "blocks_per_multiprocessor")?,
            l2_cache: number(v, "l2_cache")?,
            clock_khz: number(v, "clock_khz")?,
            memory_clock_khz: number(v, "memory_clock_khz")?,
            memory_bus_bits: number(v, "memory_bus_bits")?,
            has_memory_pools: number(v, "memory_pools")? != 0,
            driver: pair(v, "driver")?,
        };
        match values.first() {
            Some((key, _)) => Err(format!("`{key}` is unknown")),
            None => Ok(description),
        }
    }
}

/// `9.0` as two numbers.
pub(crate) fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_by_name_and_mistakes_are_named() {
        let h200 = Description::of("H200").unwrap();
        assert_eq!((h200.capability, h200.driver), ((9, 0), (13, 0)));
        assert_eq!(Description::of("laptop-4gib").unwrap().memory, 4 << 30);
        assert_eq!(Description::of("a100").unwrap().shared_per_block_optin, 163 << 10);
        let text = BUILT_IN[0].1;
        let wrong = |text: &str| Description::parse(text).unwrap_err();
        assert_eq!(wrong(&text.replace("l2_cache", "l3")), "`l2_cache` is missing");
        assert_eq!(wrong(&format!("{text}\nspeed = 3")), "`speed` is unknown");
        assert_eq!(
            wrong(&text.replace("= 132", "= many")),
            "`multiprocessors` is a number, not many"
        );
        assert_eq!(wrong("name"), "line 1: `key = value` is expected");
    }
}
