//! Hosts on this machine: network namespaces with one address each, behind a switch whose lines can have limits, delays and cuts.
//!
//! Needs root, `ip` and `tc` (Debian's iproute2) and `nsenter` (util-linux); a delay needs rustc and /dev/net/tun.
//!
//! The switch is a bridge in a namespace of its own, so hosts are separate from this machine's network and from other runs; all
//! runs use the same addresses. Hosts of a killed run are removed when the next one starts.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::Index;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::wire::Wire;

const NAMESPACES: &str = "/run/netns";
const PREFIX: &str = "forebay-";
const BRIDGE: &str = "bridge";
/// Jumbo frames: with fewer packets a second, a wire in user space carries 1 Gbit/s.
const MTU: u32 = 9000;

/// The line between a host and the switch. `None`: no limit, or no delay.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Line {
    /// In each direction.
    pub(crate) rate_mbit: Option<u32>,
    /// The delay of every packet to the host; packets from it have none. So a round trip between two hosts takes both delays.
    pub(crate) delay_ms: Option<u32>,
}

/// One host.
pub(crate) struct Host {
    name: String,
    namespace: String,
    address: Ipv4Addr,
    line: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Replaces the veth pair once the line has had a delay.
    wire: Option<Wire>,
    cut: bool,
}

impl Host {
    /// Its address on the switch.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A program with this host's network. Killed when the [`Hosts`] are dropped.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={NAMESPACES}/{}", self.namespace)).arg("--").arg(program);
        command
    }

    /// Runs `work` on a thread of this host, and waits for it. Sockets made by that thread belong to the host, also after it
    /// has ended.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            let namespace = File::open(Path::new(NAMESPACES).join(&self.namespace)).expect("it lives as long as Hosts");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter");
            work()
        };
        std::thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// The last byte of the address.
    fn number(&self) -> u8 {
        self.address.octets()[3]
    }

    /// The same for every card of the host, so that neighbours need not learn it again.
    fn ethernet(&self) -> String {
        format!("02:00:00:00:00:{:02x}", self.number())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hosts of one test, by name: `hosts["reader0"]`. Dropping them kills their processes and removes them.
pub(crate) struct Hosts {
    switch: String,
    hosts: Vec<Host>,
}

impl Index<&str> for Hosts {
    type Output = Host;

    fn index(&self, name: &str) -> &Host {
        let names = || self.hosts.iter().map(|host| &host.name).collect::<Vec<_>>();
        self.hosts.iter().find(|host| host.name == name).unwrap_or_else(|| panic!("no host {name} among {:?}", names()))
    }
}

impl Hosts {
    /// Makes hosts that reach each other. Names must be short, because network cards are named after them.
    ///
    /// # Panics
    /// If this machine cannot have hosts, with what is missing.
    pub(crate) fn new(names: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        check_machine();
        sweep();
        let run = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let host = |(name, number): (&&str, u8)| Host {
            name: (*name).to_owned(),
            namespace: format!("{run}-{name}"),
            address: Ipv4Addr::new(10, 76, 0, number),
            line: Mutex::default(),
        };
        assert!(names.len() < 250 && names.iter().all(|name| name.len() < 16 && *name != BRIDGE), "{names:?}");
        // Made first, so that a panic half-way removes what exists.
        let hosts = Self { switch: format!("{run}-switch"), hosts: names.iter().zip(1..).map(host).collect() };
        for namespace in hosts.namespaces() {
            must(Command::new("ip").args(["netns", "add", namespace]), "");
        }
        ip(&hosts.switch, &format!("link add name {BRIDGE} type bridge\nlink set dev {BRIDGE} up\n"));
        for host in &hosts.hosts {
            let Host { name, namespace, .. } = host;
            ip(&hosts.switch, &format!("link add name {name} type veth peer name eth0 netns {namespace}\n"));
            hosts.plug(host, false);
            // As hosts with long lines are usually set up.
            hosts.socket_buffers(&host.name, [64 << 20; 2]);
        }
        hosts
    }

    /// Sets limit and delay of the line to a host. Connections stay. A host that has had a delay keeps its wire in user space.
    pub(crate) fn line(&self, name: &str, line: Line) {
        let host = &self[name];
        let State { wire, cut } = &mut *host.state();
        if line.delay_ms.is_some() && wire.is_none() {
            ip(&self.switch, &format!("link del dev {name}\n"));
            // At the highest priority, because a line waits for no program. (Without the permission, `nice` does nothing.)
            let mut on_switch = Command::new("nice");
            on_switch.args(["-n", "-20", "nsenter"]).arg(format!("--net={NAMESPACES}/{}", self.switch)).arg("--");
            *wire = Some(Wire::start(&mut on_switch, &host.namespace, name, "eth0"));
            self.plug(host, *cut);
        }
        if let Some(wire) = wire {
            wire.delay(line.delay_ms.unwrap_or(0));
        }
        for (namespace, card) in [(&self.switch, name), (&host.namespace, "eth0")] {
            let mut tc = Command::new("tc");
            tc.args(["-n", namespace, "qdisc"]);
            match line.rate_mbit {
                Some(rate) => {
                    // A burst of 5 ms makes up for a late core. The queue is as long as in a deep switch.
                    let burst = (u64::from(rate) * 625).max(20_000);
                    let tbf = format!("replace dev {card} root tbf rate {rate}mbit burst {burst}b latency 100ms");
                    must(tc.args(tbf.split(' ')), "");
                }
                // Fails if there is no limit to remove.
                None => drop(tc.args(["del", "dev", card, "root"]).output().expect("tc was there before")),
            }
        }
    }

    /// Sets the largest buffers of a host for new connections: bytes received, bytes sent.
    pub(crate) fn socket_buffers(&self, name: &str, [received, sent]: [u32; 2]) {
        self[name].run(|| {
            for (file, least, most) in [("tcp_rmem", 131_072, received), ("tcp_wmem", 16_384, sent)] {
                let path = format!("/proc/sys/net/ipv4/{file}");
                std::fs::write(&path, format!("4096 {least} {most}")).unwrap_or_else(|error| panic!("{path}: {error}"));
            }
        });
    }

    /// Cuts a host off: all packets to it and from it are dropped, until [`Hosts::mend`].
    pub(crate) fn cut(&self, name: &str) {
        let mut state = self[name].state();
        // Its card stays up and is only taken off the bridge, so the host sees no change.
        ip(&self.switch, &format!("link set dev {name} nomaster\n"));
        state.cut = true;
    }

    /// Cuts two hosts off from each other, for good: packets between them are lost, and both reach all others.
    pub(crate) fn cut_between(&self, one: &str, other: &str) {
        for (from, to) in [(one, other), (other, one)] {
            let no_card = "02:00:00:00:00:ff";
            ip(
                &self[from].namespace,
                &format!("neigh replace {} lladdr {no_card} dev eth0 nud permanent\n", self[to].address),
            );
        }
    }

    /// Undoes [`Hosts::cut`].
    pub(crate) fn mend(&self, name: &str) {
        let mut state = self[name].state();
        ip(&self.switch, &format!("link set dev {name} master {BRIDGE}\n"));
        state.cut = false;
    }

    /// Configures the two cards of a host's line. Neighbours are static, so a host that is cut off is silent, as behind a
    /// router, and not "unreachable".
    fn plug(&self, host: &Host, cut: bool) {
        let Host { name, namespace, address, .. } = host;
        let ethernet = host.ethernet();
        let master = if cut { String::new() } else { format!("master {BRIDGE}") };
        ip(&self.switch, &format!("link set dev {name} mtu {MTU} txqueuelen 10000 {master} up\n"));
        let mut inside = format!(
            "link set lo up\nlink set eth0 address {ethernet} mtu {MTU} txqueuelen 10000 up\n\
             addr add {address}/24 dev eth0\n"
        );
        for other in self.hosts.iter().filter(|other| other.name != *name) {
            inside += &format!("neigh replace {} lladdr {} dev eth0 nud permanent\n", other.address, other.ethernet());
        }
        ip(namespace, &inside);
    }

    fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.hosts.iter().map(|host| &host.namespace).chain([&self.switch])
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.namespaces().for_each(|namespace| remove(namespace));
    }
}

fn check_machine() {
    let user = std::fs::metadata("/proc/self").expect("Linux has /proc").uid();
    assert!(
        user == 0,
        "hosts are network namespaces, which only root can make: run this test as root (this is user {user})"
    );
    for (program, package) in [("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")] {
        let found = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(found.is_ok(), "hosts need `{program}`: install Debian's {package}");
    }
}

/// Removes the hosts of runs that have ended.
fn sweep() {
    for entry in std::fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            remove(&name);
        }
    }
}

/// Kills the processes of a namespace and removes it. Another test may do the same at the same time.
fn remove(namespace: &str) {
    let pids = Command::new("ip").args(["netns", "pids", namespace]).output();
    let pids = pids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = Command::new("ip").args(["netns", "del", namespace]).stderr(Stdio::null()).status();
}

/// Runs lines of `ip` in a namespace.
fn ip(namespace: &str, lines: &str) {
    must(Command::new("ip").args(["-n", namespace, "-batch", "-"]), lines);
}

/// Runs a command that must succeed.
fn must(command: &mut Command, input: &str) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    // If it ends early, its output says why.
    let _ = child.stdin.take().expect("asked for").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} failed (is this a container without CAP_NET_ADMIN?): {errors}{input}"
    );
}
