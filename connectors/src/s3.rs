//! S3 and what speaks its protocol, by `object_store`; built with the cargo feature `s3`.
//!
//! Comes in: a bucket, and the usual environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
//! `AWS_ENDPOINT` (for a store that is not Amazon's), `AWS_ALLOW_HTTP=true` (for one without TLS), and all else that
//! `object_store` knows. Goes out: the store; connects to nothing yet. Its connections live on
//! [`io_runtime`](crate::store::io_runtime).

use std::sync::{Arc, LazyLock};

use dashmap::DashMap;
use forebay_actors::Fault;
use object_store::ObjectStore;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::SpawnedReqwestConnector;

use crate::store::io_runtime;

/// The store of a bucket; one for all who ask, so that connections are shared.
pub(crate) fn open(bucket: &str) -> Result<Arc<dyn ObjectStore>, Fault> {
    static OPEN: LazyLock<DashMap<String, Arc<AmazonS3>>> = LazyLock::new(DashMap::new);
    if let Some(store) = OPEN.get(bucket) {
        return Ok(Arc::<AmazonS3>::clone(&store));
    }
    let store = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_http_connector(SpawnedReqwestConnector::new(io_runtime().clone()))
        .build()
        .map_err(|e| {
            Fault::user(format!("cannot open s3://{bucket}/: check AWS_ACCESS_KEY_ID, AWS_REGION and AWS_ENDPOINT"))
                .because(e)
        })?;
    Ok(Arc::<AmazonS3>::clone(&OPEN.entry(bucket.to_owned()).or_insert_with(|| Arc::new(store))))
}
