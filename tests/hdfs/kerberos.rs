//! A secure cluster with a real KDC: the program logs in from a keytab or a ticket cache; without them its error says
//! what to do.
//!
//! SASL `privacy`: the login, block tokens, and encryption of calls and of blocks are all in use.

use std::process::Command;

use crate::cluster::{Cluster, Lease, Shared};
use crate::common;

const ROWS: u64 = 2000;

/// One NameNode, two DataNodes, the realm FOREBAY.TEST with a user `reader`, and rows in /rows, put there by the
/// superuser.
fn cluster() -> Lease {
    static SECURE: Shared = Shared::new(&["--secure", "--protection", "privacy", "--datanodes", "2"]);
    static FILLED: std::sync::Once = std::sync::Once::new();
    let cluster = SECURE.take();
    FILLED.call_once(|| {
        let local = tempfile::tempdir().unwrap();
        let rows = common::parquet(local.path(), 0, ROWS);
        cluster.fs(&["-put", rows.to_str().unwrap(), "/rows"]);
    });
    cluster
}

/// `forebay data inspect` of a path there, in an environment that knows the realm and has no ticket.
fn inspect(cluster: &Cluster, path: &str) -> Command {
    let mut command = common::forebay(&["data", "inspect", "--json", &cluster.at(path)]);
    command
        .env("HADOOP_CONF_DIR", cluster.conf_dir())
        .env("KRB5_CONFIG", cluster.krb5_dir().join("krb5.conf"))
        .env("KRB5CCNAME", "FILE:/nonexistent/tickets")
        .env_remove("FOREBAY_KERBEROS_PRINCIPAL")
        .env_remove("FOREBAY_KERBEROS_KEYTAB");
    command
}

fn with_keytab(mut command: Command, cluster: &Cluster, principal: &str) -> (Option<i32>, String) {
    command
        .env("FOREBAY_KERBEROS_PRINCIPAL", principal)
        .env("FOREBAY_KERBEROS_KEYTAB", cluster.krb5_dir().join("reader.keytab"));
    common::ended(&mut command)
}

fn assert_all_rows((code, said): (Option<i32>, String)) {
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("\"rows\":{ROWS}")), "{said}");
}

#[test]
fn a_keytab_is_accepted() {
    let cluster = cluster();
    assert_all_rows(with_keytab(inspect(&cluster, "/rows"), &cluster, "reader@FOREBAY.TEST"));
}

#[test]
fn a_ticket_is_accepted() {
    let (cluster, local) = (cluster(), tempfile::tempdir().unwrap());
    let tickets = format!("FILE:{}", local.path().join("tickets").display());
    let kinit = Command::new("kinit")
        .args(["-c", &tickets, "-k", "-t", cluster.krb5_dir().join("reader.keytab").to_str().unwrap(), "reader"])
        .env("KRB5_CONFIG", cluster.krb5_dir().join("krb5.conf"))
        .output()
        .expect("kinit is installed by `make setup`");
    assert!(kinit.status.success(), "{}", String::from_utf8_lossy(&kinit.stderr));
    assert_all_rows(common::ended(inspect(&cluster, "/rows").env("KRB5CCNAME", &tickets)));
}

#[test]
fn without_a_ticket_the_error_says_how_to_get_one() {
    let cluster = cluster();
    let said = common::exits(2, common::ended(&mut inspect(&cluster, "/rows")), &[]);
    for word in [cluster.url(), "Kerberos", "kinit", "FOREBAY_KERBEROS_KEYTAB"] {
        assert!(said.contains(word), "no {word} in: {said}");
    }
}

#[test]
fn a_keytab_of_another_user_is_refused() {
    let cluster = cluster();
    common::exits(2, with_keytab(inspect(&cluster, "/rows"), &cluster, "nobody@FOREBAY.TEST"), &["Kerberos"]);
}

#[test]
fn permissions_of_the_kerberos_user_hold() {
    let cluster = cluster();
    cluster.fs(&["-mkdir", "-p", "/private"]);
    cluster.fs(&["-chmod", "700", "/private"]);
    let ran = with_keytab(inspect(&cluster, "/private/rows"), &cluster, "reader@FOREBAY.TEST");
    common::exits(2, ran, &["permission denied", "user=reader"]);
}
