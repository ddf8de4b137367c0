#![allow(missing_docs, dead_code)]
use std::time::Duration;
use forebay_actors::Fault;
use forebay_net::{Part, Peer};
use forebay_ps::{TableClient, TableConfig};
pub(crate) struct TableService;
impl TableService { pub(crate) fn new(_: TableClient, _: TableConfig) -> Self { Self } }
impl Part for TableService { fn name(&self) -> &'static str { "table" } }
pub(crate) struct Options { pub(crate) patience: Duration, pub(crate) half: bool }
pub(crate) async fn connect(_: Vec<Peer>, _: &TableConfig, _: usize, _: Options) -> Result<TableClient, Fault> { Err(Fault::internal("stub")) }
