//! What was found and counted, as lines of JSON and as one summary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use tlc_gpusim::{Class, Counters, Finding, LineCounters, Site};

/// The most findings that the summary lists; all are counted.
const LISTED: usize = 1000;

/// Everything that was found and counted since the driver was loaded.
#[derive(Debug, Default)]
pub(crate) struct Log {
    findings: Vec<String>,
    found: u64,
    kinds: BTreeMap<&'static str, u64>,
    launches: u64,
    instructions: u64,
    calls: BTreeMap<&'static str, u64>,
    /// Bytes that were copied to devices, and to the host.
    copied: [u64; 2],
    /// Bytes that were copied from one device to another, and those of them that went through the host.
    between_devices: [u64; 2],
}

/// What the devices hold, for the summary.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) device_bytes: u64,
    pub(crate) device_peak: u64,
    pub(crate) pinned_bytes: u64,
    pub(crate) handles: u64,
}

impl Log {
    /// Notes that an entry point was called.
    pub(crate) fn call(&mut self, name: &'static str) {
        *self.calls.entry(name).or_insert(0) += 1;
    }

    /// Notes something wrong: on the error output, in the file if there is one, and for the summary.
    pub(crate) fn found(&mut self, kind: &'static str, words: &str, json: String, file: Option<&Path>) {
        eprintln!("tlc-gpusim: {words}");
        append(file, &json);
        self.found += 1;
        *self.kinds.entry(kind).or_insert(0) += 1;
        if self.findings.len() < LISTED {
            self.findings.push(json);
        }
    }

    /// Counts a launch.
    pub(crate) fn launched(&mut self, counters: &Counters) {
        self.launches += 1;
        self.instructions += counters.lane_instructions();
    }

    /// Counts bytes that were copied between the host and a device.
    pub(crate) fn copied(&mut self, to_host: bool, bytes: u64) {
        self.copied[usize::from(to_host)] += bytes;
    }

    /// Counts bytes that were copied from one device to another.
    pub(crate) fn exchanged(&mut self, through_host: bool, bytes: u64) {
        self.between_devices[0] += bytes;
        if through_host {
            self.between_devices[1] += bytes;
        }
    }

    /// All of it as JSON.
    pub(crate) fn summary(&self, held: &Held) -> String {
        let counted = |map: &BTreeMap<&'static str, u64>| {
            let pairs: Vec<String> = map.iter().map(|(k, n)| format!("{}: {n}", quoted(k))).collect();
            format!("{{{}}}", pairs.join(", "))
        };
        format!(
            "{{\"findings\": [{}], \"found\": {}, \"kinds\": {}, \"launches\": {}, \"lane_instructions\": {}, \
             \"bytes_to_device\": {}, \"bytes_to_host\": {}, \"bytes_between_devices\": {}, \"bytes_through_host\": {}, \
             \"device_bytes\": {}, \"device_peak_bytes\": {}, \"pinned_bytes\": {}, \"handles\": {}, \"calls\": {}}}",
            self.findings.join(", "),
            self.found,
            counted(&self.kinds),
            self.launches,
            self.instructions,
            self.copied[0],
            self.copied[1],
            self.between_devices[0],
            self.between_devices[1],
            held.device_bytes,
            held.device_peak,
            held.pinned_bytes,
            held.handles,
            counted(&self.calls)
        )
    }
}

/// Appends a line to a file; what cannot be written is said once a line, for nothing else can be done about it.
pub(crate) fn append(file: Option<&Path>, line: &str) {
    let Some(path) = file else { return };
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut f| f.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = written {
        eprintln!("tlc-gpusim: {}: {error}", path.display());
    }
}

/// A string of JSON.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn site(site: &Site) -> String {
    let known = |text: &Option<String>| text.as_deref().map_or("null".to_string(), quoted);
    let (file, text) = (known(&site.file), known(&site.text));
    format!(
        "{{\"function\": {}, \"ptx_line\": {}, \"file\": {file}, \"line\": {}, \"text\": {text}, \"block\": {:?}, \"thread\": {:?}}}",
        quoted(&site.function),
        site.line,
        site.source.line,
        site.block,
        site.thread
    )
}

/// A finding in a kernel as JSON.
pub(crate) fn finding(finding: &Finding, operation: &str) -> String {
    let address = finding.address.map_or("null".to_string(), |(_, a)| format!("{a}"));
    let other = finding.other.as_ref().map_or("null".to_string(), site);
    format!(
        "{{\"kind\": {}, \"kernel\": {}, \"operation\": {}, \"site\": {}, \"address\": {address}, \"bytes\": {}, \
         \"other\": {other}, \"detail\": {}, \"count\": {}}}",
        quoted(finding.kind.text()),
        quoted(&finding.kernel),
        quoted(operation),
        site(&finding.site),
        finding.bytes,
        quoted(&finding.detail),
        finding.count
    )
}

/// A finding that is in no kernel as JSON.
pub(crate) fn event(kind: &str, operation: &str, other: Option<&str>, place: (u64, u64), detail: &str) -> String {
    format!(
        "{{\"kind\": {}, \"operation\": {}, \"other\": {}, \"address\": {}, \"bytes\": {}, \"detail\": {}}}",
        quoted(kind),
        quoted(operation),
        other.map_or("null".to_string(), quoted),
        place.0,
        place.1,
        quoted(detail)
    )
}

fn line(of: &LineCounters) -> String {
    let known = |text: &Option<String>| text.as_deref().map_or("null".to_string(), quoted);
    format!(
        "{{\"file\": {}, \"line\": {}, \"text\": {}, \"lane_instructions\": {}, \"sectors\": {}, \"bank_conflicts\": {}}}",
        known(&of.file),
        of.line,
        known(&of.text),
        of.lane_instructions,
        of.sectors,
        of.bank_conflicts
    )
}

/// The counters of a launch as JSON.
pub(crate) fn counters(kernel: &str, operation: &str, grid: [u32; 3], block: [u32; 3], c: &Counters) -> String {
    let classes = [
        ("integer", Class::Integer),
        ("half", Class::Half),
        ("single", Class::Single),
        ("double", Class::Double),
        ("special", Class::Special),
        ("convert", Class::Convert),
        ("compare", Class::Compare),
        ("move", Class::Move),
        ("load", Class::Load),
        ("store", Class::Store),
        ("atomic", Class::Atomic),
        ("copy", Class::Copy),
        ("matrix", Class::Matrix),
        ("warp", Class::Warp),
        ("barrier", Class::Barrier),
        ("control", Class::Control),
    ];
    let lanes: Vec<String> = classes
        .iter()
        .map(|&(name, class)| format!("\"{name}\": {}", c.lanes_of(class)))
        .collect();
    let traffic = |t: &tlc_gpusim::Traffic| {
        format!(
            "{{\"requests\": {}, \"sectors\": {}, \"bytes\": {}}}",
            t.requests, t.sectors, t.bytes
        )
    };
    format!(
        "{{\"kernel\": {}, \"operation\": {}, \"grid\": {grid:?}, \"block\": {block:?}, \"lane_instructions\": {}, \
         \"lanes\": {{{}}}, \"global_loads\": {}, \"global_stores\": {}, \"global_atomics\": {}, \
         \"shared_load_bytes\": {}, \"shared_store_bytes\": {}, \"shared_requests\": {}, \"bank_conflicts\": {}, \
         \"local_bytes\": {}, \"branches\": {}, \"divergent_branches\": {}, \"barriers\": {}, \
         \"tile_copies\": {}, \"phases\": {}, \"lines\": [{}]}}",
        quoted(kernel),
        quoted(operation),
        c.lane_instructions(),
        lanes.join(", "),
        traffic(&c.global_loads),
        traffic(&c.global_stores),
        traffic(&c.global_atomics),
        c.shared_load_bytes,
        c.shared_store_bytes,
        c.shared_requests,
        c.bank_conflicts,
        c.local_bytes,
        c.branches,
        c.divergent_branches,
        c.barriers,
        c.tile_copies,
        c.phases,
        c.lines.iter().map(line).collect::<Vec<_>>().join(", ")
    )
}
