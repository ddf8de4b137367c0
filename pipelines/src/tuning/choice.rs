//! The replicas that make a run fastest within its cores, from the true rates of its stages.

/// The limits of a run, by its meters.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    /// For each scalable stage, seconds of a replica per row of the run: one over its true rate.
    pub(super) costs: Vec<f64>,
    /// Rows per second that all other stages can do at most.
    pub(super) others_limit: f64,
    /// CPU seconds per row of all other stages.
    pub(super) other_cpu_per_row: f64,
    /// Cores of the run.
    pub(super) cores: usize,
    /// The memory of replicas.
    pub(super) memory: Memory,
}

/// The memory that added replicas may take.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// The replicas that are there.
    pub(super) now: Vec<usize>,
    /// For each scalable stage, bytes that one more replica needs.
    pub(super) each: Vec<f64>,
    /// Bytes that are free.
    pub(super) free: f64,
}

/// Replicas take at most this share of the free memory, because their need is an estimate.
const TAKEN: f64 = 0.8;

impl Memory {
    /// Whether there is memory for these replicas.
    pub(super) fn holds(&self, replicas: &[usize]) -> bool {
        let more = replicas.iter().zip(&self.now).map(|(&n, &now)| n.saturating_sub(now) as f64);
        let needed: f64 = more.zip(&self.each).map(|(more, each)| more * each).sum();
        needed == 0.0 || needed <= TAKEN * self.free
    }
}

/// Scaled stages get this much more capacity than the others, because rows do not come evenly.
const HEADROOM: f64 = 1.1;

impl Rates {
    /// Rows per second with these replicas.
    pub(super) fn rate(&self, replicas: &[usize]) -> f64 {
        self.scalable_rate(replicas).min(self.others_limit)
    }

    /// Cores that these replicas and all other stages use.
    pub(super) fn cores_used(&self, replicas: &[usize]) -> f64 {
        replicas.iter().sum::<usize>() as f64 + self.other_cpu_per_row * self.rate(replicas)
    }

    /// Whether these replicas stay within the cores and the memory of the run.
    pub(super) fn fits(&self, replicas: &[usize]) -> bool {
        self.cores_used(replicas) <= self.cores as f64 && self.memory.holds(replicas)
    }

    /// The replicas that make the run fastest within its cores and its memory, at least `least` of each, and no more than needed.
    ///
    /// The stage that limits gets one more replica, until another limit is reached. Each step raises the lowest rate, so no other choice of
    /// as many replicas gives a higher rate.
    pub(super) fn best(&self, least: &[usize]) -> Vec<usize> {
        let enough = HEADROOM * self.others_limit;
        let mut replicas = least.to_vec();
        while self.scalable_rate(&replicas) < enough {
            let each = || replicas.iter().zip(&self.costs).map(|(&n, &cost)| n as f64 / cost);
            let Some((limit, _)) = each().enumerate().min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            let mut more = replicas.clone();
            more[limit] += 1;
            if !self.fits(&more) {
                break;
            }
            replicas = more;
        }
        self.without_needless(replicas, least)
    }

    /// Takes away replicas that do not raise the rate. For example, two stages are at the limit, and only one of them could get a replica.
    fn without_needless(&self, mut replicas: Vec<usize>, least: &[usize]) -> Vec<usize> {
        let rate = self.scalable_rate(&replicas).min(HEADROOM * self.others_limit);
        for (at, &least) in least.iter().enumerate() {
            while replicas[at] > least && (replicas[at] - 1) as f64 / self.costs[at] >= rate * (1.0 - 1e-9) {
                replicas[at] -= 1;
            }
        }
        replicas
    }

    fn scalable_rate(&self, replicas: &[usize]) -> f64 {
        replicas.iter().zip(&self.costs).map(|(&n, &cost)| n as f64 / cost).fold(f64::INFINITY, f64::min)
    }
}
