//! Rare branches, taken on purpose.
//!
//! Much that is seldom needed is right at any time: to do without the room ahead of a journal, to let a descriptor go, to leave a check-point out.
//! Where the code chooses between such a branch and the usual one it asks here as well, and a simulated run takes it often.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Random;

/// Says where a rare branch is taken without need. Cheap to clone. Outside the simulator it is [`Buggify::never`]: a look at an empty place.
#[derive(Clone, Debug, Default)]
pub struct Buggify(Option<Arc<Sites>>);

#[derive(Debug)]
struct Sites {
    seed: u64,
    /// By their names, as far as somebody has asked. Guards nothing else.
    asked: Mutex<BTreeMap<&'static str, Site>>,
}

#[derive(Debug)]
struct Site {
    dice: Random,
    /// The branch is taken one in so many times; 0: never in this run.
    one_in: u32,
    taken: u64,
}

/// What a seed chooses from for a site: a run in which everything is rare at once would hide what a single branch does.
const ONE_IN: [u32; 5] = [0, 0, 2, 5, 30];

/// How often a site takes its branch in a run, at most: some cost a file each time.
const TAKEN_MAX: u64 = 300;

impl Buggify {
    /// Never.
    pub const fn never() -> Buggify {
        Buggify(None)
    }

    /// As the seed says: which sites take their branch, how often, and when. A site's choices do not depend on who asks at others.
    pub fn seeded(seed: u64) -> Buggify {
        Buggify(Some(Arc::new(Sites { seed, asked: Mutex::default() })))
    }

    /// Whether the rare branch is taken at this site, this time.
    pub fn at(&self, site: &'static str) -> bool {
        match &self.0 {
            None => false,
            Some(sites) => sites.takes(site),
        }
    }

    /// How often it was taken, by site.
    pub fn taken(&self) -> BTreeMap<&'static str, u64> {
        let Some(sites) = &self.0 else { return BTreeMap::new() };
        let asked = sites.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().map(|(name, site)| (*name, site.taken)).collect()
    }
}

impl Sites {
    fn takes(&self, name: &'static str) -> bool {
        // Nothing panics while it is held.
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let site = asked.entry(name).or_insert_with(|| Site::of(self.seed, name));
        let takes = site.one_in > 0 && site.taken < TAKEN_MAX && site.dice.below(site.one_in) == 0;
        site.taken += u64::from(takes);
        takes
    }
}

impl Site {
    fn of(seed: u64, name: &str) -> Site {
        // FNV-1a: sites differ by their names.
        let number = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |number: u64, byte| (number ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let dice = Random::seeded(seed ^ number);
        Site { one_in: ONE_IN[dice.below(ONE_IN.len() as u32) as usize], dice, taken: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_a_simulated_run_nothing_is_rare() {
        let never = Buggify::never();
        assert!((0..1_000).all(|_| !never.at("anywhere")));
        assert!(never.taken().is_empty());
    }

    #[test]
    fn a_seed_says_what_is_taken_whoever_else_asks() {
        let choices = |buggify: &Buggify| (0..200).map(|_| buggify.at("here")).collect::<Vec<_>>();
        for seed in 0..50 {
            let (alone, beside) = (Buggify::seeded(seed), Buggify::seeded(seed));
            beside.at("elsewhere");
            assert_eq!(choices(&alone), choices(&beside), "seed {seed}");
        }
    }

    #[test]
    fn a_site_is_at_rest_in_some_runs_and_busy_in_others() {
        let taken = |seed| {
            let buggify = Buggify::seeded(seed);
            for _ in 0..300 {
                buggify.at("here");
            }
            buggify.taken()["here"]
        };
        let all: Vec<u64> = (0..100).map(taken).collect();
        assert!(all.contains(&0) && all.iter().any(|count| *count > 100), "{all:?}");
    }

    #[test]
    fn a_site_is_at_rest_when_it_was_taken_often() {
        for seed in 0..20 {
            let buggify = Buggify::seeded(seed);
            for _ in 0..100_000 {
                buggify.at("here");
            }
            assert!([0, TAKEN_MAX].contains(&buggify.taken()["here"]));
        }
    }
}
