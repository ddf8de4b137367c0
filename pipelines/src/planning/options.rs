//! The assumptions of a plan: the machines, and figures that the report of one run cannot have. A user sets each by its name.

use forebay_actors::Fault;
use forebay_base::nearest;
use forebay_job::ByteSize;
use serde::Serialize;

/// What a machine of a role has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MachineKind {
    /// Cores. `None`: as many as the measured process had.
    pub cores: Option<f64>,
    /// Bytes per second of its network, each way.
    pub network: f64,
    /// Bytes of memory.
    pub memory: f64,
    /// Money per hour, if it is known.
    pub price: Option<f64>,
}

impl Default for MachineKind {
    fn default() -> Self {
        Self { cores: None, network: 10e9 / 8.0, memory: 64.0 * (1_u64 << 30) as f64, price: None }
    }
}

/// What a plan is made for, and what it assumes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanOptions {
    /// Rows to train on, all passes together. `None`: as many as were measured.
    pub rows: Option<f64>,
    /// Seconds that the run may take. `None`: the plan has the machines of the job's placement.
    pub deadline: Option<f64>,
    /// Machines of readers, ps and trainers.
    pub machines: [MachineKind; 3],
    /// Keys of the table at the end. `None`: they follow from how the measured table grew.
    pub keys: Option<f64>,
    /// How many times as fast as needed the machines must be.
    pub headroom: f64,
    /// Seconds from one machine to another and back.
    pub round_trip: f64,
    /// How many times as fast as measured a trainer computes.
    pub compute_speed: f64,
    /// Bytes per second that the store gives to all readers together. `None`: as many as they ask for.
    pub store: Option<f64>,
    /// Bytes on a network for each byte sent.
    pub headers: f64,
    /// CPU seconds that a byte costs at each end of a link that the measured run did not have.
    pub network_cpu: f64,
    /// How many times its share of the keys the busiest ps has.
    pub skew: f64,
    /// Bytes per second that a machine writes to the store. `None`: as measured.
    pub save_speed: Option<f64>,
    /// The part of the possible speed of cores, compute and shards that a run reaches, at most 1. `None`: as in the measured run, if it had
    /// one process; else 1.
    pub attained: Option<f64>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            rows: None,
            deadline: None,
            machines: [MachineKind::default(); 3],
            keys: None,
            headroom: 1.25,
            round_trip: 0.5e-3,
            compute_speed: 1.0,
            store: None,
            headers: 1.02,
            network_cpu: 1.5e-9,
            skew: 1.0,
            save_speed: None,
            attained: None,
        }
    }
}

/// The roles, in the order of [`PlanOptions::machines`].
pub(super) const ROLES: [&str; 3] = ["reader", "ps", "trainer"];

const NAMES: [&str; 12] = [
    "rows",
    "deadline",
    "keys",
    "headroom",
    "round_trip",
    "compute_speed",
    "store",
    "headers",
    "network_cpu",
    "skew",
    "save_speed",
    "attained",
];
const PARTS: [&str; 4] = ["cores", "network", "memory", "price"];

impl PlanOptions {
    /// Sets the option `name`.
    ///
    /// # Errors
    /// User: there is none of this name, or the value is not one of its kind.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Fault> {
        let named = |why: String| Fault::user(format!("{name}: {why}"));
        let at_least_1 = |what: &str| {
            let n = number(what)?;
            if (1.0..=1e18).contains(&n) { Ok(n) } else { Err(format!("{what}, expected 1 to 1e18")) }
        };
        match name {
            "rows" => self.rows = Some(at_least_1(value).map_err(named)?),
            "deadline" => self.deadline = Some(duration(value).map_err(named)?),
            "keys" => self.keys = Some(at_least_1(value).map_err(named)?),
            "headroom" => self.headroom = at_least_1(value).map_err(named)?,
            "round_trip" => self.round_trip = duration(value).map_err(named)?,
            "compute_speed" => self.compute_speed = number(value).map_err(named)?,
            "store" => self.store = Some(speed(value).map_err(named)?),
            "headers" => self.headers = at_least_1(value).map_err(named)?,
            "network_cpu" => self.network_cpu = duration(value).map_err(named)?,
            "skew" => self.skew = at_least_1(value).map_err(named)?,
            "save_speed" => self.save_speed = Some(speed(value).map_err(named)?),
            "attained" => {
                let share = number(value).map_err(named)?;
                if share > 1.0 {
                    return Err(named(format!("{share} is above 1, expected a share, for instance 0.8")));
                }
                self.attained = Some(share);
            }
            _ => return Err(unknown("assumption", name, &NAMES)),
        }
        Ok(())
    }

    /// Sets an option, given as `name=value`.
    ///
    /// # Errors
    /// As [`set`](Self::set); also if there is no `=`.
    pub fn assume(&mut self, text: &str) -> Result<(), Fault> {
        let (name, value) = pair(text)?;
        self.set(name, value)
    }

    /// Sets what machines have: `cores=16,network=10Gbit` for all roles, `ps:memory=256GiB` for one.
    ///
    /// # Errors
    /// User: there is no such role or part, or the value is not one of its kind.
    pub fn set_machine(&mut self, text: &str) -> Result<(), Fault> {
        let (roles, parts) = match text.split_once(':') {
            None => (0..ROLES.len(), text),
            Some((role, parts)) => match ROLES.iter().position(|known| *known == role) {
                Some(at) => (at..at + 1, parts),
                None => return Err(unknown("role", role, &ROLES)),
            },
        };
        for part in parts.split(',') {
            let (name, value) = pair(part)?;
            let named = |why: String| Fault::user(format!("{name}: {why}"));
            for machine in &mut self.machines[roles.clone()] {
                match name {
                    "cores" => machine.cores = Some(number(value).map_err(named)?),
                    "network" => machine.network = speed(value).map_err(named)?,
                    "memory" => machine.memory = bytes(value).map_err(named)?,
                    "price" => machine.price = Some(number(value).map_err(named)?),
                    _ => return Err(unknown("part of a machine", name, &PARTS)),
                }
            }
        }
        Ok(())
    }
}

fn pair(text: &str) -> Result<(&str, &str), Fault> {
    text.split_once('=').map(|(name, value)| (name.trim(), value.trim())).ok_or_else(|| {
        Fault::user(format!("{text:?} has no value, expected a name and a value, for instance headroom=1.5"))
    })
}

fn unknown(what: &str, name: &str, names: &[&str]) -> Fault {
    let near = nearest(name, names.iter().copied()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    Fault::user(format!("there is no {what} `{name}`, expected one of {}{near}", names.join(", ")))
}

fn number(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not a number above 0, expected for instance 16 or 1e11");
    text.replace('_', "").parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0).ok_or_else(wrong)
}

fn bytes(text: &str) -> Result<f64, String> {
    let size: ByteSize = text.parse()?;
    if size.0 > 0 { Ok(size.0 as f64) } else { Err(format!("{text:?} is not a size, expected for instance 64GiB")) }
}

/// Bytes per second, of `10Gbit`, `100 Mbit/s`, `60MB/s`.
fn speed(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not a speed, expected for instance 10Gbit, 100Mbit or 60MB");
    let plain = text.trim().trim_end_matches("/s").to_ascii_lowercase();
    let value = match plain.strip_suffix("bit") {
        None => plain.parse::<ByteSize>().map_err(|_| wrong())?.0 as f64,
        Some(bits) => {
            let digits = bits.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(bits.len());
            let unit = match bits[digits..].trim() {
                "" => 1.0,
                "k" => 1e3,
                "m" => 1e6,
                "g" => 1e9,
                _ => return Err(wrong()),
            };
            bits[..digits].parse::<f64>().map_err(|_| wrong())? * unit / 8.0
        }
    };
    if value > 0.0 { Ok(value) } else { Err(wrong()) }
}

/// Seconds, of `5h`, `1h30m`, `45s`, `0.5ms`, `1.5ns`.
fn duration(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not a time, expected for instance 5h, 1h30m, 45s or 0.5ms");
    let (mut rest, mut sum) = (text.trim(), 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(wrong)?;
        let after = &rest[digits..];
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let unit = match after[..letters].trim() {
            "d" => 86_400.0,
            "h" => 3600.0,
            "m" | "min" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(wrong()),
        };
        sum += rest[..digits].parse::<f64>().map_err(|_| wrong())? * unit;
        rest = &after[letters..];
    }
    if sum > 0.0 && sum.is_finite() { Ok(sum) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_units_that_people_write() {
        assert_eq!([speed("10Gbit"), speed("100 Mbit/s"), speed("60MB/s")], [Ok(1.25e9), Ok(12.5e6), Ok(60e6)]);
        assert_eq!([duration("5h"), duration("1h30m"), duration("45s")], [Ok(18_000.0), Ok(5400.0), Ok(45.0)]);
        assert!((duration("0.5ms").unwrap() - 5e-4).abs() < 1e-12);
        for wrong in ["", "5", "h", "5x", "-5h", "0s", "1e", "5hh"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "Gbit", "10Tbit", "-1Gbit", "0Mbit", "fast"] {
            assert!(speed(wrong).is_err(), "{wrong}");
        }
        let mut options = PlanOptions::default();
        options.set_machine("cores=16,price=0.5").unwrap();
        options.set_machine("ps:memory=256GiB,network=25Gbit").unwrap();
        options.assume("rows=1e11").unwrap();
        assert_eq!(options.machines.map(|machine| machine.cores), [Some(16.0); 3]);
        assert_eq!(options.machines[1].memory, 256.0 * (1_u64 << 30) as f64);
        assert_eq!((options.machines[0].network, options.machines[1].network), (1.25e9, 3.125e9));
        assert_eq!(options.rows, Some(1e11));
    }

    #[test]
    fn every_name_can_be_set_and_no_other() {
        for name in NAMES {
            let works = ["1", "2s", "2MB"].iter().any(|value| PlanOptions::default().set(name, value).is_ok());
            assert!(works, "{name}");
            let fault = PlanOptions::default().set(name, "x").unwrap_err().to_string();
            assert!(fault.contains(name) && fault.contains("expected"), "{fault}");
        }
        let refused = |machine: &str| PlanOptions::default().set_machine(machine).unwrap_err().to_string();
        for (machine, words) in [
            ("readers:cores=1", ["no role `readers`", "did you mean `reader`?"]),
            ("core=1", ["no part of a machine `core`", "did you mean `cores`?"]),
            ("cores=none", ["cores: \"none\"", "expected"]),
            ("memory=0", ["memory", "expected"]),
            ("cores", ["has no value", "expected"]),
        ] {
            let fault = refused(machine);
            assert!(words.iter().all(|word| fault.contains(word)), "{fault}");
        }
        let fault = PlanOptions::default().assume("headrom=2").unwrap_err().to_string();
        assert!(fault.contains("did you mean `headroom`?"), "{fault}");
        assert!(PlanOptions::default().set("headroom", "0.5").is_err());
    }
}
