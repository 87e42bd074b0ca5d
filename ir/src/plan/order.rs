//! The order of a plan's steps: which of them certainly happen before which others.
//!
//! A plan is a partial order. Each step of a call is in a *queue*, and may wait for steps of other queues. What one queue holds
//! runs in the order of the list. The host goes through the list: it hands the steps of devices to their queues, and
//! runs its own itself before it goes on. One step therefore happens before another if and only if a chain of these leads from
//! it to the other:
//!
//! - both are in one queue, in this order in the list;
//! - the second waits for the first;
//! - the first is the host's (queue 0), and is earlier in the list.
//!
//! Steps of `init` run one after another before the first step of a call. A plan without [`Turn`]s has one queue, the host's.
//!
//! The relation is kept as vector clocks (Fidge 1988, Mattern 1989): for each step, how many steps of each queue certainly
//! happen before it.

use smallvec::SmallVec;

use super::{DeviceId, Plan, SlotId, Step};

/// A queue of a plan, by its number; [`QueueId::HOST`] always exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct QueueId(pub u32);

impl QueueId {
    /// What the host runs itself.
    pub const HOST: QueueId = QueueId(0);
}

/// When a step of a call runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// Its queue.
    pub queue: QueueId,
    /// Numbers of earlier steps of the call that must be done before it begins.
    pub waits: SmallVec<[u32; 2]>,
}

/// For each queue, a number of its steps.
pub type Clock = SmallVec<[u32; 4]>;

/// Which steps of a call happen before which others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    queues: usize,
    /// By step: the steps of each queue that are certainly done once this one is, itself included.
    done: Vec<Clock>,
    /// By step: its queue, and how many steps of that queue there are up to and with it.
    places: Vec<(usize, u32)>,
    /// By queue: the steps that are in it.
    steps: Vec<Vec<u32>>,
}

impl Order {
    /// The order of so many steps. A wait for a step that is not an earlier one, and a queue that does not exist, count as nothing:
    /// the verifier reports them.
    pub fn new(steps: usize, queues: usize, turns: &[Turn]) -> Order {
        let queues = queues.max(1);
        let mut order = Order {
            queues,
            done: Vec::with_capacity(steps),
            places: Vec::with_capacity(steps),
            steps: vec![Vec::new(); queues],
        };
        let host = Turn::default();
        (0..steps).for_each(|step| order.push(turns.get(step).unwrap_or(&host)));
        order
    }

    /// What is certainly done before a step that comes next in the list and is in that queue.
    fn implied(&self, queue: usize) -> Clock {
        let mut clock = self.nothing();
        for last in [self.steps[queue].last(), self.steps[0].last()].into_iter().flatten() {
            self.join(&mut clock, &self.done[*last as usize]);
        }
        clock
    }

    /// Adds the step that comes next in the list.
    pub fn push(&mut self, turn: &Turn) {
        let step = self.done.len();
        let queue = (turn.queue.0 as usize).min(self.queues - 1);
        let mut clock = self.implied(queue);
        for &wait in turn.waits.iter().filter(|&&w| (w as usize) < step) {
            self.join(&mut clock, &self.done[wait as usize]);
        }
        self.steps[queue].push(step as u32);
        let number = self.steps[queue].len() as u32;
        clock[queue] = number;
        self.done.push(clock);
        self.places.push((queue, number));
    }

    /// The steps that the next one of a queue must wait for so that all that a clock stands for are done before it: no more than are
    /// needed, in the order of the list.
    pub fn waits(&self, queue: QueueId, needed: &Clock) -> SmallVec<[u32; 2]> {
        let mut clock = self.implied((queue.0 as usize).min(self.queues - 1));
        let late = |clock: &Clock| {
            let missing = (0..self.queues).filter(|&q| needed[q] > clock[q]);
            missing.map(|q| self.steps[q][needed[q] as usize - 1]).max()
        };
        let mut waits = SmallVec::new();
        // The latest implies the most.
        while let Some(step) = late(&clock) {
            self.join(&mut clock, &self.done[step as usize]);
            waits.push(step);
        }
        waits.sort_unstable();
        waits
    }

    /// All steps in an order in which they may run: a random one, as the seed says, among those that are ready.
    pub fn shuffled(&self, seed: u64) -> Vec<usize> {
        let mut state = seed;
        let mut done: Clock = self.nothing();
        let mut out = Vec::with_capacity(self.done.len());
        while out.len() < self.done.len() {
            // What is next in a queue runs if all that happens before it has.
            let ready: SmallVec<[usize; 4]> = (0..self.queues)
                .filter_map(|q| self.steps[q].get(done[q] as usize).map(|&s| (q, s as usize)))
                .filter(|&(q, s)| {
                    let needs = self.done[s].iter().enumerate();
                    needs
                        .into_iter()
                        .all(|(other, &n)| n - u32::from(other == q) <= done[other])
                })
                .map(|(_, s)| s)
                .collect();
            // Knuth's MMIX generator; the upper bits are the random ones.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let chosen = ready[(state >> 33) as usize % ready.len()];
            done[self.places[chosen].0] += 1;
            out.push(chosen);
        }
        out
    }

    /// Number of queues.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Whether a step is certainly done before another begins.
    pub fn before(&self, first: usize, second: usize) -> bool {
        let (queue, number) = self.places[first];
        first != second && self.done[second][queue] >= number
    }

    /// A clock of no steps.
    pub fn nothing(&self) -> Clock {
        SmallVec::from_elem(0, self.queues)
    }

    /// Adds a step to those that a clock stands for: the later of the two in its queue counts.
    pub fn add(&self, clock: &mut Clock, step: usize) {
        let (queue, number) = self.places[step];
        clock[queue] = clock[queue].max(number);
    }

    /// Adds the steps that another clock stands for.
    pub fn join(&self, clock: &mut Clock, other: &Clock) {
        clock.iter_mut().zip(other).for_each(|(a, b)| *a = (*a).max(*b));
    }

    /// Whether all steps that a clock stands for are done before that one begins, or are that one.
    pub fn all_before(&self, clock: &Clock, step: usize) -> bool {
        clock.iter().zip(&self.done[step]).all(|(wanted, done)| wanted <= done)
    }

    /// A step that a clock stands for and that may still run when the given one begins.
    pub fn unordered(&self, clock: &Clock, step: usize) -> Option<usize> {
        let late = clock
            .iter()
            .zip(&self.done[step])
            .position(|(wanted, done)| wanted > done)?;
        Some(self.steps[late][clock[late] as usize - 1] as usize)
    }

    /// The last step of the list that may run while one of those that a clock stands for has not ended: what first happens behind
    /// it in the list happens after all of them.
    pub fn end(&self, clock: &Clock) -> usize {
        if self.queues == 1 {
            return (clock[0] as usize).saturating_sub(1);
        }
        let mut end = 0;
        for steps in &self.steps {
            // What a queue knows to be done only grows along it.
            let first = steps.partition_point(|&s| !self.all_before(clock, s as usize));
            // The step that is meant itself counts as one that knows it is done.
            let itself = steps.get(first).is_some_and(|&s| {
                let (queue, number) = self.places[s as usize];
                clock[queue] == number
            });
            match (itself, first) {
                (true, _) => end = end.max(steps[first] as usize),
                (false, 0) => {}
                (false, n) => end = end.max(steps[n - 1] as usize),
            }
        }
        end
    }
}

impl Plan {
    /// Which of the steps of a call happen before which others.
    pub fn order(&self) -> Order {
        Order::new(self.steps.len(), self.queues.len(), &self.turns)
    }

    /// From which step of the call to which the bytes of each slot are in use, by the slot whose bytes they are: from the first in the
    /// list that touches them to the last that may run while one of those that do has not ended. Two slots can have one place if
    /// these ranges do not meet.
    pub fn lives(&self) -> Vec<Option<(usize, usize)>> {
        self.lives_in(&self.order())
    }

    /// As [`Plan::lives`], for who has the order already.
    pub fn lives_in(&self, order: &Order) -> Vec<Option<(usize, usize)>> {
        let mut touched: Vec<Option<(usize, Clock)>> = vec![None; self.slots.len()];
        for (at, step) in self.steps.iter().enumerate() {
            let mut touch = |slot: SlotId, _| {
                let known = touched[self.root(slot).0 as usize].get_or_insert_with(|| (at, order.nothing()));
                order.add(&mut known.1, at);
            };
            step.visit_slots(&mut touch, &self.kernels);
        }
        let alive = |known: Option<(usize, Clock)>| known.map(|(first, clock)| (first, order.end(&clock)));
        touched.into_iter().map(alive).collect()
    }

    /// The queue of a step of the call, if that is one of launches beside those of its device's first queue.
    pub fn beside(&self, step: usize) -> Option<QueueId> {
        let queue = self.turns.get(step)?.queue;
        let first = self.queues.iter().position(|d| *d == self.queue_device(queue))?;
        let launches = !matches!(self.steps.get(step)?, Step::Copy { .. });
        (launches && first != queue.0 as usize).then_some(queue)
    }

    /// The device that a queue belongs to.
    pub fn queue_device(&self, queue: QueueId) -> DeviceId {
        self.queues.get(queue.0 as usize).copied().unwrap_or(DeviceId::HOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(queue: u32, waits: &[u32]) -> Turn {
        Turn {
            queue: QueueId(queue),
            waits: SmallVec::from_slice(waits),
        }
    }

    /// What happens before what, by the definition: the transitive closure of its three rules.
    fn closure(turns: &[Turn]) -> Vec<Vec<bool>> {
        let n = turns.len();
        let mut before = vec![vec![false; n]; n];
        for b in 0..n {
            for a in (0..b).rev() {
                let same = turns[a].queue == turns[b].queue;
                let direct = same || turns[a].queue == QueueId::HOST || turns[b].waits.contains(&(a as u32));
                before[a][b] = direct || (a + 1..b).any(|m| before[a][m] && before[m][b]);
            }
        }
        before
    }

    /// A generator of small orders: a multiplicative congruence (Lehmer) is random enough for queues and waits.
    fn orders(count: u64) -> impl Iterator<Item = Vec<Turn>> {
        (1..=count).map(|seed| {
            let mut state = seed * 2_654_435_761 % 2_147_483_647 + 1;
            let mut draw = |n: u64| {
                state = state * 48_271 % 2_147_483_647;
                state % n
            };
            let steps = draw(14) as u32;
            let queues = 1 + draw(4);
            let one = |step: u32, draw: &mut dyn FnMut(u64) -> u64| {
                let waits: Vec<u32> = (0..step).filter(|_| draw(5) == 0).collect();
                // Few of the host's, so that some steps stay unordered.
                let queue = if draw(6) == 0 { 0 } else { draw(queues) };
                turn(queue as u32, &waits)
            };
            (0..steps).map(|s| one(s, &mut draw)).collect()
        })
    }

    #[test]
    fn the_order_is_the_closure_of_its_rules() {
        let mut unordered = 0;
        for turns in orders(2000) {
            let order = Order::new(turns.len(), 4, &turns);
            let expected = closure(&turns);
            for (a, row) in expected.iter().enumerate() {
                for (b, &before) in row.iter().enumerate() {
                    assert_eq!(order.before(a, b), before, "{a} {b} {turns:?}");
                    unordered += usize::from(a < b && !before);
                }
            }
        }
        assert!(unordered > 1000, "only {unordered} pairs without order");
    }

    #[test]
    fn random_orders_are_orders() {
        for (seed, turns) in orders(500).enumerate() {
            let order = Order::new(turns.len(), 4, &turns);
            let shuffled = order.shuffled(seed as u64);
            let mut sorted = shuffled.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..turns.len()), "{shuffled:?}");
            for (k, &later) in shuffled.iter().enumerate() {
                let wrong = shuffled[..k].iter().find(|&&earlier| order.before(later, earlier));
                assert_eq!(wrong, None, "{shuffled:?} {turns:?}");
            }
        }
    }

    /// Everything in the list behind the end of some steps happens after all of them; what is at the end does not.
    #[test]
    fn behind_the_end_of_steps_all_of_them_are_done() {
        for (round, turns) in orders(2000).enumerate() {
            let order = Order::new(turns.len(), 4, &turns);
            let chosen: Vec<usize> = (0..turns.len()).filter(|s| (s * 7 + round) % 3 == 0).collect();
            if chosen.is_empty() {
                continue;
            }
            let mut clock = order.nothing();
            chosen.iter().for_each(|&s| order.add(&mut clock, s));
            let end = order.end(&clock);
            let follows = |step: usize| chosen.iter().all(|&c| order.before(c, step));
            assert!((end + 1..turns.len()).all(follows), "{chosen:?} {end} {turns:?}");
            assert!(!follows(end), "{chosen:?} {end} {turns:?}");
            for step in 0..turns.len() {
                let late = chosen.iter().any(|&c| c != step && !order.before(c, step));
                assert_eq!(
                    order.unordered(&clock, step).is_some(),
                    late,
                    "{chosen:?} {step} {turns:?}"
                );
            }
        }
    }
}
