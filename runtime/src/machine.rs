//! What this machine is: its processor, its caches, its memory, and the accelerator libraries that can be loaded.
//!
//! Invariants:
//!
//! - Detection never panics and never fails: what cannot be found out is `None`, empty, or a conservative default, and
//!   each field says which. It works (with less to say) on processors other than x86 and systems other than Linux.
//! - Counts of processors are those that this *process* may use (affinity, container quota), not the machine's.
//! - A vector feature is reported only if the processor has it and the operating system saves its registers.
//! - Looking for a library loads and unloads it, but calls nothing in it, so a broken driver cannot take us down.

mod libraries;

pub(crate) use libraries::library_folders;
pub use libraries::{GpuLibraries, NVRTC_VARIABLE};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What is known about this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// The processor.
    pub cpu: Cpu,
    /// What its vector units can do.
    pub features: CpuFeatures,
    /// Its data caches.
    pub caches: Caches,
    /// The size of an ordinary page, in bytes.
    pub page_bytes: u64,
    /// Whether the system gives huge pages to whom.
    pub huge_pages: HugePageMode,
    /// The memory that this process may use, in bytes: the machine's, or its container's where that is less. `None`
    /// where the system does not tell.
    pub memory_bytes: Option<u64>,
    /// The accelerator libraries found.
    pub gpu: GpuLibraries,
}

/// The processor and how much of it this process may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// The marketing name, as in `AMD EPYC 9B45`; the architecture's name where the processor gives none.
    pub model: String,
    /// The vendor, as in `AuthenticAMD`; empty if unknown.
    pub vendor: String,
    /// The architecture, as Rust calls it: `x86_64`, `aarch64`, ...
    pub architecture: String,
    /// Family, model and stepping numbers (x86 only): names of virtual machines often say less.
    pub family_model_stepping: Option<[u32; 3]>,
    /// Logical processors that this process may run on.
    pub logical_cores: usize,
    /// Physical cores among them; equals `logical_cores` where the topology is unknown.
    pub physical_cores: usize,
    /// Threads worth starting: logical processors, less what a container's quota forbids.
    pub usable_threads: usize,
}

impl Cpu {
    /// The name under which measurements of this processor are kept: model name and numbers.
    #[must_use]
    pub fn key(&self) -> String {
        match self.family_model_stepping {
            Some([family, model, stepping]) => format!("{} ({family}/{model}/{stepping})", self.model),
            None => self.model.clone(),
        }
    }
}

/// Vector instructions that may be used. All false on other processors than x86, except `neon`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the processor manuals' own")]
pub struct CpuFeatures {
    pub sse4_2: bool,
    pub avx: bool,
    pub avx2: bool,
    pub fma: bool,
    pub f16c: bool,
    pub avx512f: bool,
    pub avx512vl: bool,
    pub avx512bw: bool,
    pub avx512dq: bool,
    pub avx512_vnni: bool,
    pub avx512_bf16: bool,
    pub avx512_fp16: bool,
    /// AMX tiles. On Linux a process must still ask for them (`arch_prctl(ARCH_REQ_XCOMP_PERM)`) before it uses them.
    pub amx_tile: bool,
    pub amx_bf16: bool,
    pub amx_int8: bool,
    pub neon: bool,
}

impl CpuFeatures {
    /// What this processor and system offer.
    #[must_use]
    pub fn detect() -> Self {
        detect_features()
    }

    /// The width of the widest vector register that arithmetic may use, in bytes (4, a scalar, if there is none).
    #[must_use]
    pub fn vector_bytes(&self) -> usize {
        if self.avx512f {
            64
        } else if self.avx2 {
            32
        } else if self.neon || cfg!(target_feature = "sse2") {
            16
        } else {
            4
        }
    }

    /// The names of the features present, in a fixed order.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            ("sse4.2", self.sse4_2),
            ("avx", self.avx),
            ("avx2", self.avx2),
            ("fma", self.fma),
            ("f16c", self.f16c),
            ("avx512f", self.avx512f),
            ("avx512vl", self.avx512vl),
            ("avx512bw", self.avx512bw),
            ("avx512dq", self.avx512dq),
            ("avx512_vnni", self.avx512_vnni),
            ("avx512_bf16", self.avx512_bf16),
            ("avx512_fp16", self.avx512_fp16),
            ("amx_tile", self.amx_tile),
            ("amx_bf16", self.amx_bf16),
            ("amx_int8", self.amx_int8),
            ("neon", self.neon),
        ];
        all.into_iter()
            .filter(|(_, present)| *present)
            .map(|(name, _)| name)
            .collect()
    }
}

/// One level of data cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// The size of one instance, in bytes.
    pub bytes: u64,
    /// How many of the logical processors that this process may use share one instance.
    pub shared_by: usize,
}

/// The data caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caches {
    /// First level, data.
    pub l1d: Cache,
    /// Second level.
    pub l2: Cache,
    /// Third level, if there is one.
    pub l3: Option<Cache>,
    /// The size of a cache line, in bytes.
    pub line_bytes: u64,
    /// Where this comes from.
    pub source: CacheSource,
}

impl Caches {
    /// The size of the largest cache, in bytes.
    #[must_use]
    pub fn last_level_bytes(&self) -> u64 {
        self.l3.map_or(0, |cache| cache.bytes).max(self.l2.bytes)
    }

    /// What is assumed where nothing can be found out: sizes that nearly every processor has.
    fn assumed() -> Self {
        Caches {
            l1d: Cache {
                bytes: 32 << 10,
                shared_by: 1,
            },
            l2: Cache {
                bytes: 512 << 10,
                shared_by: 1,
            },
            l3: None,
            line_bytes: 64,
            source: CacheSource::Assumed,
        }
    }
}

/// Where the cache sizes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheSource {
    /// The system's tables.
    System,
    /// The processor itself.
    Cpuid,
    /// Nowhere: conservative defaults.
    Assumed,
}

/// To whom the system gives transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePageMode {
    /// To everybody.
    Always,
    /// To those who ask.
    Madvise,
    /// To nobody.
    Never,
    /// The system does not say.
    Unknown,
}

impl MachineInfo {
    /// Looks at this machine, accelerator libraries included. Takes milliseconds, more where large libraries load.
    #[must_use]
    pub fn detect() -> Self {
        MachineInfo {
            gpu: GpuLibraries::probe(),
            ..Self::detect_without_gpu()
        }
    }

    /// Looks at this machine, but loads no library: [`MachineInfo::gpu`] stays empty. Takes well under a millisecond.
    #[must_use]
    pub fn detect_without_gpu() -> Self {
        let usable = usable_cpus();
        MachineInfo {
            cpu: detect_cpu(&usable),
            features: CpuFeatures::detect(),
            caches: system_caches(&usable)
                .or_else(cpuid_caches)
                .unwrap_or_else(Caches::assumed),
            page_bytes: page_bytes(),
            huge_pages: huge_page_mode(),
            memory_bytes: total_memory_bytes(),
            gpu: GpuLibraries::default(),
        }
    }
}

// ---- processors ----------------------------------------------------------------------------------------------------

/// The numbers of the logical processors that this process may run on; empty where the system does not say.
fn usable_cpus() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // The kernel refuses masks smaller than its own: try larger ones, up to 64k processors.
        for words in [16usize, 128, 1024] {
            let mut mask = vec![0u64; words];
            // SAFETY: the kernel writes at most the given number of bytes, all of which are ours.
            let result = unsafe { libc::sched_getaffinity(0, words * 8, mask.as_mut_ptr().cast()) };
            if result == 0 {
                let is_set = |cpu: &usize| {
                    // A C `long` bitmap: equal to 64-bit words on little-endian and on 64-bit big-endian systems.
                    mask[cpu / 64] >> (cpu % 64) & 1 == 1
                };
                return (0..words * 64).filter(is_set).collect();
            }
        }
    }
    Vec::new()
}

fn detect_cpu(usable: &[usize]) -> Cpu {
    let usable_threads = crate::pool::default_threads();
    let logical_cores = if usable.is_empty() {
        usable_threads
    } else {
        usable.len()
    };
    let architecture = std::env::consts::ARCH.to_owned();
    let model = cpuid_brand()
        .or_else(system_brand)
        .unwrap_or_else(|| architecture.clone());
    Cpu {
        model,
        vendor: cpuid_vendor().unwrap_or_default(),
        architecture,
        family_model_stepping: cpuid_signature(),
        logical_cores,
        physical_cores: physical_cores(usable)
            .unwrap_or(logical_cores)
            .clamp(1, logical_cores.max(1)),
        usable_threads,
    }
}

/// The first family of AMD's processors, Zen 5, that loads two vectors of 512 bits in a cycle (Software Optimization Guide for the AMD Zen5
/// Microarchitecture). Of others it is not known that they stream lines, for none was measured.
const ZEN5: u32 = 26;

/// Whether a core streams lines, as [`tlc_ir::target::Cpu::streams_lines`] says.
pub(crate) fn streams_lines() -> bool {
    static STREAMS: OnceLock<bool> = OnceLock::new();
    *STREAMS.get_or_init(|| is_of_amd_since(ZEN5))
}

/// The first family of AMD's processors, Zen, whose last caches are each beside a few cores. Measured on Zen 4: convolutions of 16x16 pixels and
/// 1024 channels take 0.86 to 0.99 of the time if weights come from there for each tile, and not for parts of the sums, which are then in memory.
const ZEN: u32 = 23;

/// Whether the last cache feeds tiles, as [`tlc_ir::target::Cpu::feeds_tiles`] says.
pub(crate) fn feeds_tiles() -> bool {
    static FEEDS: OnceLock<bool> = OnceLock::new();
    *FEEDS.get_or_init(|| is_of_amd_since(ZEN))
}

/// Whether multiplying by a power of two in one instruction (`vscalefps`) is as fast where the result underflows, as it does for each element that a
/// mask hides from a softmax. Measured on Zen 4: results of zero and subnormal ones take the time of others. Of Intel's it is not known.
pub(crate) fn scales() -> bool {
    static SCALES: OnceLock<bool> = OnceLock::new();
    *SCALES.get_or_init(|| is_of_amd_since(ZEN))
}

/// Whether the processor is a Zen 4: of the family of Zen 3, with vectors of 512 bits, which it moves in halves.
fn is_zen4() -> bool {
    const FAMILY: u32 = 25;
    // All that is known of the features would ask the processor again, which takes long in a virtual machine.
    #[cfg(target_arch = "x86_64")]
    let has_avx512 = std::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    let has_avx512 = false;
    has_avx512 && amd_family() == Some(FAMILY)
}

/// In which vectors a core best streams, as [`tlc_ir::target::Cpu::streamed_bits`] says. Measured on Zen 4: what comes from beyond the second cache
/// and goes back takes 0.7 to 1.0 of the time in vectors of 256 bits, and what the second cache holds the same time. On Zen 5 it is the other way about.
pub(crate) fn streamed_bits() -> Option<u32> {
    is_zen4().then_some(256)
}

/// Whether a core follows distant rows, as [`tlc_ir::target::Cpu::follows_distant_rows`] says. Measured on Zen 4 and Zen 5 (there 9216 elements times 128
/// rows of 4.5 MiB take 0.73 of the time); of others it is not known.
pub(crate) fn follows_distant_rows() -> bool {
    is_zen4() || is_of_amd_since(ZEN5)
}

/// Whether a core's prefetchers follow loads with masks, as [`tlc_ir::target::Cpu::follows_masked_loads`] says. Measured on Zen 5: images of 224x224
/// pixels that come from memory are padded in 25 us, or with masks in 55 to 60, and with masks and the lines 256 to 4096 bytes ahead asked for in
/// 25 again. Of others it is not known that they do not.
pub(crate) fn follows_masked_loads() -> bool {
    !is_of_amd_since(ZEN5)
}

/// Whether the processor is one of AMD's, of that family or a later one.
fn is_of_amd_since(first: u32) -> bool {
    amd_family().is_some_and(|family| family >= first)
}

/// The family of the processor if it is one of AMD's.
fn amd_family() -> Option<u32> {
    static FAMILY: OnceLock<Option<u32>> = OnceLock::new();
    let of_amd = || cpuid_vendor().is_some_and(|vendor| vendor == "AuthenticAMD");
    *FAMILY.get_or_init(|| cpuid_signature().filter(|_| of_amd()).map(|[family, ..]| family))
}

/// Counts groups of sibling threads.
fn physical_cores(usable: &[usize]) -> Option<usize> {
    let mut groups = Vec::new();
    for cpu in usable {
        let folder = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/topology"));
        let group =
            read_line(&folder.join("core_cpus_list")).or_else(|| read_line(&folder.join("thread_siblings_list")));
        groups.push(group?);
    }
    groups.sort_unstable();
    groups.dedup();
    (!groups.is_empty()).then_some(groups.len())
}

fn system_brand() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| {
        ["model name", "Model", "cpu model"]
            .iter()
            .any(|key| line.starts_with(key))
    })?;
    let name = line.split_once(':')?.1.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
pub(crate) mod x86 {
    #[cfg(target_arch = "x86")]
    use std::arch::x86 as arch;
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64 as arch;
    use std::sync::OnceLock;

    /// The four registers of a cpuid leaf, if the processor has that leaf.
    pub(crate) fn leaf(number: u32, sub: u32) -> Option<[u32; 4]> {
        // Each question traps to the hypervisor where there is one, and takes microseconds then: what several ask is asked once.
        static FIRST: [OnceLock<[u32; 4]>; 2] = [OnceLock::new(), OnceLock::new()];
        static SIGNATURE: OnceLock<[u32; 4]> = OnceLock::new();
        let ask = |number: u32, sub: u32| {
            let result = arch::__cpuid_count(number, sub);
            [result.eax, result.ebx, result.ecx, result.edx]
        };
        let range = number & 0x8000_0000;
        let first = FIRST[(range >> 31) as usize].get_or_init(|| ask(range, 0));
        match number {
            _ if number == range => Some(*first),
            _ if number > first[0] => None,
            1 => Some(*SIGNATURE.get_or_init(|| ask(1, 0))),
            _ => Some(ask(number, sub)),
        }
    }

    /// The register sets that the operating system saves (XCR0); 0 where it saves none itself.
    pub(super) fn saved_registers() -> u64 {
        #[target_feature(enable = "xsave")]
        fn read() -> u64 {
            // SAFETY: register 0 exists wherever the instruction does.
            unsafe { arch::_xgetbv(0) }
        }
        let uses_xsave = leaf(1, 0).is_some_and(|[_, _, ecx, _]| ecx >> 27 & 1 == 1);
        if uses_xsave && std::is_x86_feature_detected!("xsave") {
            // SAFETY: the processor has `xsave` and the system has turned it on.
            unsafe { read() }
        } else {
            0
        }
    }

    pub(super) fn text(words: &[u32]) -> String {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = String::from_utf8_lossy(&bytes);
        text.trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned()
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn cpuid_vendor() -> Option<String> {
    x86::leaf(0, 0).map(|[_, ebx, ecx, edx]| x86::text(&[ebx, edx, ecx]))
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn cpuid_brand() -> Option<String> {
    let mut words = Vec::new();
    for number in 0x8000_0002..=0x8000_0004 {
        words.extend(x86::leaf(number, 0)?);
    }
    Some(x86::text(&words)).filter(|name| !name.is_empty())
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn cpuid_signature() -> Option<[u32; 3]> {
    let eax = x86::leaf(1, 0)?[0];
    let (base_family, base_model) = (eax >> 8 & 15, eax >> 4 & 15);
    let family = if base_family == 15 {
        15 + (eax >> 20 & 255)
    } else {
        base_family
    };
    let model = if matches!(base_family, 6 | 15) {
        base_model + ((eax >> 16 & 15) << 4)
    } else {
        base_model
    };
    Some([family, model, eax & 15])
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn detect_features() -> CpuFeatures {
    use std::is_x86_feature_detected as has;
    // The standard library does not know AMX yet: leaf 7, and bits 17 and 18 of what the system saves.
    let saves_tiles = x86::saved_registers() >> 17 & 3 == 3;
    let leaf_7_edx = x86::leaf(7, 0).map_or(0, |[_, _, _, edx]| edx);
    let amx = |bit: u32| saves_tiles && leaf_7_edx >> bit & 1 == 1;
    CpuFeatures {
        sse4_2: has!("sse4.2"),
        avx: has!("avx"),
        avx2: has!("avx2"),
        fma: has!("fma"),
        f16c: has!("f16c"),
        avx512f: has!("avx512f"),
        avx512vl: has!("avx512vl"),
        avx512bw: has!("avx512bw"),
        avx512dq: has!("avx512dq"),
        avx512_vnni: has!("avx512vnni"),
        avx512_bf16: has!("avx512bf16"),
        avx512_fp16: has!("avx512fp16"),
        amx_tile: amx(24),
        amx_bf16: amx(24) && amx(22),
        amx_int8: amx(24) && amx(25),
        neon: false,
    }
}

/// The caches as the processor itself describes them: leaf 4 (Intel) or 0x8000001D (AMD), which share a format.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn cpuid_caches() -> Option<Caches> {
    let of_amd = x86::leaf(0x8000_001d, 0).filter(|leaf| leaf[0] & 31 != 0);
    let number = if of_amd.is_some() { 0x8000_001d } else { 4 };
    let mut found = Found::default();
    for sub in 0..16 {
        let [eax, ebx, ecx, _] = match of_amd {
            Some(first) if sub == 0 => first,
            _ => x86::leaf(number, sub)?,
        };
        let kind = eax & 31;
        if kind == 0 {
            break;
        }
        // 1 is data, 3 is unified.
        if kind == 1 || kind == 3 {
            let line = u64::from(ebx & 0xfff) + 1;
            let ways = u64::from(ebx >> 22) + 1;
            let partitions = u64::from(ebx >> 12 & 0x3ff) + 1;
            let bytes = line * ways * partitions * (u64::from(ecx) + 1);
            // Who of those the process may use shares it is not known here.
            let level = eax >> 5 & 7;
            found.add(u64::from(level), Cache { bytes, shared_by: 1 }, line);
        }
    }
    found.finish(CacheSource::Cpuid)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn cpuid_vendor() -> Option<String> {
    None
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn cpuid_brand() -> Option<String> {
    None
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn cpuid_signature() -> Option<[u32; 3]> {
    None
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn detect_features() -> CpuFeatures {
    CpuFeatures {
        neon: cfg!(all(target_arch = "aarch64", target_feature = "neon")),
        ..CpuFeatures::default()
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn cpuid_caches() -> Option<Caches> {
    None
}

// ---- caches --------------------------------------------------------------------------------------------------------

/// Caches gathered level by level.
#[derive(Default)]
struct Found {
    levels: [Option<Cache>; 3],
    line_bytes: u64,
}

impl Found {
    fn add(&mut self, level: u64, cache: Cache, line_bytes: u64) {
        if let 1..=3 = level
            && cache.bytes > 0
        {
            self.levels[level as usize - 1] = Some(cache);
            self.line_bytes = self.line_bytes.max(line_bytes);
        }
    }

    fn finish(self, source: CacheSource) -> Option<Caches> {
        let [l1d, l2, l3] = self.levels;
        let assumed = Caches::assumed();
        let line_bytes = if self.line_bytes.is_power_of_two() {
            self.line_bytes
        } else {
            assumed.line_bytes
        };
        l1d.map(|l1d| Caches {
            l1d,
            l2: l2.unwrap_or(Cache {
                bytes: l1d.bytes,
                ..l1d
            }),
            l3,
            line_bytes,
            source,
        })
    }
}

/// The caches of the first processor that this process may use, from Linux's tables.
fn system_caches(usable: &[usize]) -> Option<Caches> {
    let cpu = usable.first()?;
    caches_in(
        &PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/cache")),
        usable,
    )
}

fn caches_in(folder: &Path, usable: &[usize]) -> Option<Caches> {
    let mut found = Found::default();
    for index in 0..16 {
        let folder = folder.join(format!("index{index}"));
        let Some(kind) = read_line(&folder.join("type")) else {
            break;
        };
        if kind != "Data" && kind != "Unified" {
            continue;
        }
        let number = |name: &str| read_line(&folder.join(name)).and_then(|text| parse_size(&text));
        let (Some(level), Some(bytes)) = (number("level"), number("size")) else {
            continue;
        };
        let shared = read_line(&folder.join("shared_cpu_list"))
            .map(|text| parse_cpu_list(&text))
            .unwrap_or_default();
        let shared_by = shared.iter().filter(|cpu| usable.contains(cpu)).count().max(1);
        found.add(
            level,
            Cache { bytes, shared_by },
            number("coherency_line_size").unwrap_or(64),
        );
    }
    found.finish(CacheSource::System)
}

/// `48K`, `2M`, `64` in bytes.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// `0-3,8` as numbers; what cannot be read is left out.
fn parse_cpu_list(text: &str) -> Vec<usize> {
    const MOST: usize = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            cpus.extend(first..=last.min(MOST));
        }
    }
    cpus
}

fn read_line(path: &Path) -> Option<String> {
    std::fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

// ---- memory --------------------------------------------------------------------------------------------------------

fn page_bytes() -> u64 {
    #[cfg(unix)]
    {
        // SAFETY: a plain query.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if let Ok(bytes) = u64::try_from(bytes)
            && bytes.is_power_of_two()
        {
            return bytes;
        }
    }
    4096
}

pub(crate) fn huge_page_mode() -> HugePageMode {
    let text = read_line(Path::new("/sys/kernel/mm/transparent_hugepage/enabled")).unwrap_or_default();
    match text.split(['[', ']']).nth(1) {
        Some("always") => HugePageMode::Always,
        Some("madvise") => HugePageMode::Madvise,
        Some("never") => HugePageMode::Never,
        _ => HugePageMode::Unknown,
    }
}

/// The bytes of memory that this process can still get without anything being taken from others, pages of files aside: the machine's, or its
/// container's where those are fewer; `None` where the system does not tell.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
    let of_container = |name: &str| read_line(&Path::new("/sys/fs/cgroup").join(name))?.parse::<u64>().ok();
    let container = of_container("memory.max").zip(of_container("memory.current"));
    let left = container.map_or(u64::MAX, |(most, used)| most.saturating_sub(used));
    Some(machine.min(left))
}

/// The memory that this process may use, in bytes: the machine's, or its container's where that is less; `None` where
/// the system does not tell.
#[must_use]
pub fn total_memory_bytes() -> Option<u64> {
    let limits = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let limit = limits
        .iter()
        .filter_map(|path| read_line(Path::new(path))?.parse::<u64>().ok())
        .min();
    let machine = installed_memory_bytes();
    match (machine, limit) {
        (Some(machine), Some(limit)) => Some(machine.min(limit)),
        // A limit alone may be "no limit", written as a huge number.
        (machine, _) => machine,
    }
}

fn installed_memory_bytes() -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // SAFETY: plain queries.
        let (pages, bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        u64::try_from(pages)
            .ok()?
            .checked_mul(u64::try_from(bytes).ok()?)
            .filter(|bytes| *bytes > 0)
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        None
    }
}

/// The caches' sizes, without who shares them. Asks the processor first: the system's tables take 100 times as long.
pub(crate) fn cache_sizes() -> Caches {
    static SIZES: OnceLock<Caches> = OnceLock::new();
    let found = || cpuid_caches().or_else(|| system_caches(&usable_cpus()));
    *SIZES.get_or_init(|| found().unwrap_or_else(Caches::assumed))
}

/// Bytes of one core's second-level cache.
pub(crate) fn second_level_bytes() -> u64 {
    cache_sizes().l2.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detection_gives_usable_numbers() {
        let info = MachineInfo::detect();
        assert!(!info.cpu.model.is_empty() && !info.cpu.key().is_empty());
        assert!(info.cpu.logical_cores >= 1 && info.cpu.usable_threads >= 1);
        assert!((1..=info.cpu.logical_cores).contains(&info.cpu.physical_cores));
        assert!(info.caches.l1d.bytes >= 4 << 10 && info.caches.l2.bytes >= info.caches.l1d.bytes);
        assert!(info.caches.last_level_bytes() >= info.caches.l2.bytes);
        assert!(info.caches.line_bytes.is_power_of_two() && info.page_bytes.is_power_of_two());
        assert!(info.features.vector_bytes() >= 4);
        assert!(!info.features.avx512f || info.features.names().contains(&"avx512f"));
        if cfg!(target_os = "linux") {
            assert!(info.memory_bytes.unwrap() > 1 << 20);
        }
        let json = serde_json::to_string(&info).unwrap();
        assert_eq!(serde_json::from_str::<MachineInfo>(&json).unwrap(), info);
    }

    #[test]
    fn affinity_is_respected() {
        let usable = usable_cpus();
        if cfg!(target_os = "linux") {
            assert!(!usable.is_empty());
            assert!(crate::pool::default_threads() <= usable.len());
        }
    }

    #[test]
    fn sizes_and_lists_parse_or_are_left_out() {
        assert_eq!(parse_size("48K"), Some(48 << 10));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("64"), Some(64));
        for odd in ["", "K", "12Q", "99999999999999999999G", "18446744073709551615K", "é"] {
            assert_eq!(parse_size(odd), None, "{odd}");
        }
        assert_eq!(parse_cpu_list("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpu_list("5-2,x,-,7"), [7]);
        assert_eq!(parse_cpu_list("0-99999999999").len(), (1 << 16) + 1);
    }

    #[test]
    fn cache_tables_are_read_and_broken_ones_are_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(caches_in(folder.path(), &[0]), None);
        let write = |index: u32, fields: &[(&str, &str)]| {
            let folder = folder.path().join(format!("index{index}"));
            std::fs::create_dir_all(&folder).unwrap();
            for (name, text) in fields {
                std::fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        };
        write(
            0,
            &[
                ("type", "Data"),
                ("level", "1"),
                ("size", "48K"),
                ("shared_cpu_list", "0,4"),
            ],
        );
        write(1, &[("type", "Instruction"), ("level", "1"), ("size", "32K")]);
        write(2, &[("type", "Unified"), ("level", "2"), ("size", "broken")]);
        write(
            3,
            &[
                ("type", "Unified"),
                ("level", "3"),
                ("size", "32M"),
                ("shared_cpu_list", "0-7"),
            ],
        );
        write(4, &[("type", "Unified"), ("level", "4"), ("size", "1G")]);
        let caches = caches_in(folder.path(), &[0, 1, 4]).unwrap();
        assert_eq!(
            caches.l1d,
            Cache {
                bytes: 48 << 10,
                shared_by: 2
            }
        );
        assert_eq!(caches.l2.bytes, 48 << 10);
        assert_eq!(
            caches.l3,
            Some(Cache {
                bytes: 32 << 20,
                shared_by: 3
            })
        );
        assert_eq!((caches.line_bytes, caches.source), (64, CacheSource::System));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_is_asked_once_is_what_the_processor_says() {
        let said = |number: u32, sub: u32| {
            let r = std::arch::x86_64::__cpuid_count(number, sub);
            // Leaf 1 tells in its second word on which processor it was asked.
            [
                r.eax,
                if number == 1 { r.ebx & 0x00ff_ffff } else { r.ebx },
                r.ecx,
                r.edx,
            ]
        };
        for number in [0, 1, 7, 0x8000_0000, 0x8000_0002] {
            for _ in 0..2 {
                let mut kept = x86::leaf(number, 0).expect("every x86-64 processor has it");
                if number == 1 {
                    kept[1] &= 0x00ff_ffff;
                }
                assert_eq!(kept, said(number, 0), "{number:#x}");
            }
        }
        for beyond in [said(0, 0)[0] + 1, said(0x8000_0000, 0)[0] + 1] {
            assert_eq!(x86::leaf(beyond, 0), None);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_processor_knows_its_caches_too() {
        if let Some(caches) = cpuid_caches() {
            assert!(caches.l1d.bytes >= 4 << 10);
            assert!(caches.line_bytes.is_power_of_two());
        }
    }
}
