//! Choices that measuring can make better: how far tiles reach, what is asked for ahead, how much work a thread is given.
//!
//! Schedules make these by the target's numbers. Each is one of a few candidates, all of which compute the same bits, so that whoever
//! runs a kernel may pick the fastest (`tlc tune`) and have schedules take it from then on. A choice is known by its kernel (a
//! [`KernelKey`]), by what it is about (a [`Tunable`]), and by its place among those of one kernel that are about the same.

use std::fmt;
use std::str::FromStr;

use rustc_hash::FxHashMap;
use tlc_ir::Kernel;

/// Declares the tunables, each with its name in text.
macro_rules! tunables {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// What a choice is about.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum Tunable {
            $($(#[$doc])* $variant,)*
        }

        impl Tunable {
            /// All of them.
            pub const ALL: &[Tunable] = &[$(Tunable::$variant),*];

            /// Its name in text.
            pub fn name(self) -> &'static str {
                match self {
                    $(Tunable::$variant => $name,)*
                }
            }
        }
    };
}

tunables! {
    /// Microseconds of the least work that is handed to another thread, by the target's rates; a launch of less than two such pieces
    /// stays on one thread.
    ThreadWork "thread-work",
    /// Pixels of a tile of a direct convolution, or rows of one of a product of words.
    TilePixels "tile-pixels",
    /// Channels of the image that a long sum of a direct convolution takes at a time for all pixels; 0 takes all for one tile.
    RoundChannels "round-channels",
    /// Blocks of channels of a direct convolution that are computed for one row of pixels after the other; 0 is all pixels for one block.
    BlocksPerRow "blocks-per-row",
    /// Pixels of a piece that a thread takes of a direct convolution's rows; 0 is whole rows.
    PiecePixels "piece-pixels",
    /// Whether tiles of a direct convolution ask for the next block's weights.
    WeightsAhead "weights-ahead",
    /// By how many iterations over the channels of an image the next ones are asked for; 0 is not at all.
    ChannelsAhead "channels-ahead",
    /// Rows of results whose windows run together.
    WindowRows "window-rows",
    /// Elements of one parallel iteration of a flat loop.
    BlockElements "block-elements",
    /// Vectors side by side of a loop that accumulates nothing.
    Vectors "vectors",
    /// Bits of the vectors of a kernel that moves more than the second cache holds and accumulates nothing.
    VectorBits "vector-bits",
    /// Rows of a transposition's tiles.
    TransposedRows "transposed-rows",
    /// Columns of a tile of sums along columns.
    ColumnTile "column-tile",
}

impl fmt::Display for Tunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A choice that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// What about.
    pub tunable: Tunable,
    /// What could be chosen, in ascending order, the value included.
    pub candidates: Vec<i64>,
    /// What was.
    pub value: i64,
    /// Whether it was pinned, and so measured, not calculated.
    pub pinned: bool,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.pinned { "measured" } else { "by the model" };
        write!(f, "{}={} {by}", self.tunable, self.value)
    }
}

/// What a choice is to be: `tile-pixels=7` for the first of a kernel about that, `tile-pixels.1=7` for the second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pin {
    /// What about.
    pub tunable: Tunable,
    /// Its place among the kernel's choices about that.
    pub ordinal: u32,
    /// The value. It is taken if it is a candidate.
    pub value: i64,
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal {
            0 => write!(f, "{}={}", self.tunable, self.value),
            n => write!(f, "{}.{n}={}", self.tunable, self.value),
        }
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Pin, PinError> {
        let wrong = || PinError(text.into());
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let (name, ordinal) = match name.split_once('.') {
            Some((name, ordinal)) => (name, ordinal.parse().map_err(|_| wrong())?),
            None => (name, 0),
        };
        let tunable = Tunable::ALL.iter().find(|t| t.name() == name).ok_or_else(wrong)?;
        Ok(Pin {
            tunable: *tunable,
            ordinal,
            value: value.parse().map_err(|_| wrong())?,
        })
    }
}

/// A text that is no [`Pin`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{}` is no choice; expected NAME=NUMBER, where NAME is one of {}", .0, names())]
pub struct PinError(String);

fn names() -> String {
    let names: Vec<&str> = Tunable::ALL.iter().map(|t| t.name()).collect();
    names.join(", ")
}

/// What a kernel is known by from process to process: a hash of its naive loop nest and of all that its schedule depends on besides, but
/// the processor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelKey(u64);

impl KernelKey {
    /// That of a naive nest, and a text of all else that its schedule depends on.
    pub(crate) fn of(nest: &Kernel, setting: fmt::Arguments<'_>) -> KernelKey {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        // Writing to a hash cannot fail.
        let _ = fmt::write(&mut hash, format_args!("{nest}{setting}"));
        KernelKey(hash.0)
    }
}

impl fmt::Display for KernelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for KernelKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<KernelKey, KeyError> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| digits);
        number.map(KernelKey).ok_or_else(|| KeyError(text.into()))
    }
}

/// A text that is no [`KernelKey`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` names no kernel; expected 16 hexadecimal digits")]
pub struct KeyError(String);

/// FNV-1a of 64 bits, whose value is the same in every build (<http://www.isthe.com/chongo/tech/comp/fnv/>).
struct Fnv(u64);

impl fmt::Write for Fnv {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

/// What choices are to be, by kernel.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pins {
    of: FxHashMap<KernelKey, Vec<Pin>>,
}

impl Pins {
    /// The pins of a kernel, in place of those that it had.
    pub fn set(&mut self, kernel: KernelKey, pins: Vec<Pin>) {
        self.of.insert(kernel, pins);
    }

    /// The pins of a kernel.
    pub fn of(&self, kernel: KernelKey) -> &[Pin] {
        self.of.get(&kernel).map_or(&[], |p| p)
    }
}

/// The choices of one kernel, as they are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned<'p>(pub(crate) &'p [Pin]);

impl Pinned<'_> {
    /// Makes a choice beside those that were `made`: what is pinned, if it is a candidate, and else what the model says. A choice between
    /// one and itself is none.
    pub(crate) fn choose(
        self,
        made: &mut Vec<Choice>,
        tunable: Tunable,
        model: i64,
        candidates: impl IntoIterator<Item = i64>,
    ) -> i64 {
        let mut candidates: Vec<i64> = candidates.into_iter().chain([model]).collect();
        candidates.sort_unstable();
        candidates.dedup();
        if candidates.len() < 2 {
            return model;
        }
        let ordinal = made.iter().filter(|c| c.tunable == tunable).count() as u32;
        let pin = self.0.iter().find(|p| (p.tunable, p.ordinal) == (tunable, ordinal));
        let pin = pin.map(|p| p.value).filter(|v| candidates.contains(v));
        let value = pin.unwrap_or(model);
        made.push(Choice {
            tunable,
            candidates,
            value,
            pinned: pin.is_some(),
        });
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_read_as_they_are_written() {
        for (n, &tunable) in Tunable::ALL.iter().enumerate() {
            let pin = Pin {
                tunable,
                ordinal: n as u32 % 3,
                value: 7 - n as i64,
            };
            assert_eq!(pin.to_string().parse(), Ok(pin));
        }
        for wrong in [
            "",
            "tile-pixels",
            "tile-pixels=",
            "tile=7",
            "tile-pixels.x=7",
            "tile-pixels=7.5",
        ] {
            assert!(wrong.parse::<Pin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_pinned_is_taken_if_it_is_a_candidate() {
        let pin = |ordinal, value| Pin {
            tunable: Tunable::TilePixels,
            ordinal,
            value,
        };
        let pins = [pin(0, 4), pin(1, 5), pin(2, 8)];
        let (mut made, pinned) = (Vec::new(), Pinned(&pins));
        let mut choose = |tunable, candidates: [i64; 3]| pinned.choose(&mut made, tunable, 2, candidates);
        assert_eq!(choose(Tunable::TilePixels, [2, 4, 8]), 4);
        assert_eq!(choose(Tunable::Vectors, [1, 2, 4]), 2);
        // 5 is none of them.
        assert_eq!(choose(Tunable::TilePixels, [2, 4, 8]), 2);
        // Nothing to choose from, and so not counted.
        assert_eq!(choose(Tunable::TilePixels, [2, 2, 2]), 2);
        assert_eq!(choose(Tunable::TilePixels, [8, 4, 2]), 8);
        let pinned: Vec<bool> = made.iter().map(|c| c.pinned).collect();
        assert_eq!(pinned, [true, false, false, true]);
    }
}
