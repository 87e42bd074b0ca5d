//! The order in which warps run.

/// Who runs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    /// Each warp in turn, some instructions at a time.
    RoundRobin,
    /// Any warp, any number of instructions, by a seed.
    Random,
    /// The last warp and the last lanes first, each as far as it goes.
    Adversarial,
}

/// Numbers without a pattern, by a seed.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// One of so many numbers from 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

/// Decisions of a schedule.
pub(super) struct Turns {
    schedule: Schedule,
    dice: Dice,
    /// Whether everyone gets a turn, because nobody has made progress for long: no order may starve the holder of a lock.
    is_fair: bool,
}

impl Turns {
    pub(super) const fn new(schedule: Schedule, seed: u64) -> Turns {
        Turns {
            schedule,
            dice: Dice::new(seed),
            is_fair: false,
        }
    }

    pub(super) const fn set_fair(&mut self, is_fair: bool) {
        self.is_fair = is_fair;
    }

    /// Which of some candidates is next; `turn` goes round among them.
    pub(super) fn pick(&mut self, candidates: usize, turn: &mut usize) -> usize {
        if candidates <= 1 {
            return 0;
        }
        match self.schedule {
            _ if self.is_fair => {
                *turn = (*turn + 1) % candidates;
                *turn
            }
            Schedule::RoundRobin => {
                *turn = (*turn + 1) % candidates;
                *turn
            }
            Schedule::Random => self.dice.below(candidates),
            Schedule::Adversarial => candidates - 1,
        }
    }

    /// How many instructions it may run before others get a turn.
    pub(super) fn quantum(&mut self) -> u32 {
        match self.schedule {
            Schedule::Adversarial if self.is_fair => 64,
            Schedule::RoundRobin => 64,
            Schedule::Random => 1 + self.dice.below(48) as u32,
            Schedule::Adversarial => 4096,
        }
    }

    /// How many turns a block gets before the next block.
    pub(super) const fn turns(&self, warps: usize) -> usize {
        match self.schedule {
            Schedule::RoundRobin | Schedule::Random => warps,
            Schedule::Adversarial if self.is_fair => warps,
            Schedule::Adversarial => 1,
        }
    }
}
