//! Vector clocks over streams, the branches of graphs, and the host.

/// What is known of each line of work: how many of its operations came before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    /// How many operations of a line are known to be before.
    pub(crate) fn of(&self, line: usize) -> u64 {
        self.0.get(line).copied().unwrap_or(0)
    }

    /// Everything that another knows is known too.
    pub(crate) fn learn(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, &theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = theirs.max(*mine);
        }
    }

    /// Sets what is known of one line.
    pub(crate) fn set(&mut self, line: usize, count: u64) {
        if self.0.len() <= line {
            self.0.resize(line + 1, 0);
        }
        self.0[line] = count;
    }
}

/// Lines of work, each with a number that is used again when nobody can mistake one for the other.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Operations of each line so far.
    counts: Vec<u64>,
    free: Vec<usize>,
}

impl Lines {
    /// A new line. What is done on one that is used again is after all that the host knows of it, which must be everything.
    pub(crate) fn open(&mut self, host: &Clock) -> usize {
        let known = |line: &usize| host.of(*line) >= self.counts[*line];
        if let Some(at) = self.free.iter().position(known) {
            return self.free.swap_remove(at);
        }
        self.counts.push(0);
        self.counts.len() - 1
    }

    pub(crate) fn close(&mut self, line: usize) {
        self.free.push(line);
    }

    /// The next operation of a line.
    pub(crate) fn next(&mut self, line: usize) -> u64 {
        self.counts[line] += 1;
        self.counts[line]
    }
}
