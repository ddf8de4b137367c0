//! The replicas that make a run fastest within its cores, from the true rates of its stages.

/// What limits a run, as far as the meters say.
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
}

/// Stages get this much more than the others can do: rows do not come evenly.
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

    /// The replicas that make the run fastest within its cores, at least `least` of each, and no more than needed.
    ///
    /// The stage that limits gets one more, until another limit is reached. Each step raises the lowest rate, so no other way
    /// to spend as many replicas gives a higher one.
    pub(super) fn best(&self, least: &[usize]) -> Vec<usize> {
        let enough = HEADROOM * self.others_limit;
        let mut replicas = least.to_vec();
        while self.scalable_rate(&replicas) < enough {
            let each = || replicas.iter().zip(&self.costs).map(|(&n, &cost)| n as f64 / cost);
            let Some((limit, _)) = each().enumerate().min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            let mut more = replicas.clone();
            more[limit] += 1;
            if self.cores_used(&more) > self.cores as f64 {
                break;
            }
            replicas = more;
        }
        self.without_needless(replicas, least)
    }

    /// Takes away what does not change the rate: two stages may be at the limit, and there was room for one more of one.
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
