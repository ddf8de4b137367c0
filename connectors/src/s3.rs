//! S3 and what speaks its protocol, by `object_store`; built with the cargo feature `s3`.
//!
//! The usual environment counts: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT` (for a store that is not
//! Amazon's), `AWS_ALLOW_HTTP=true` (for one without TLS), and all others that `object_store` knows.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_actors::{Fault, IoRuntime};
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, SpawnedReqwestConnector,
};
use object_store::{ClientOptions, ObjectStore};

/// The store of a bucket. Connects to nothing yet.
pub(crate) fn open(bucket: &str, io: &IoRuntime) -> Result<Arc<dyn ObjectStore>, Fault> {
    let store = AmazonS3Builder::from_env().with_bucket_name(bucket).with_http_connector(OnRuntime(io.clone())).build();
    let store = store.map_err(|e| {
        Fault::user(format!("cannot open s3://{bucket}/: check AWS_ACCESS_KEY_ID, AWS_REGION and AWS_ENDPOINT"))
            .because(e)
    })?;
    Ok(Arc::new(store))
}

/// Makes clients that work on the runtime and keep it alive.
#[derive(Debug)]
struct OnRuntime(IoRuntime);

impl HttpConnector for OnRuntime {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = SpawnedReqwestConnector::new(self.0.handle().clone()).connect(options)?;
        Ok(HttpClient::new(ClientOnRuntime { client, _io: self.0.clone() }))
    }
}

#[derive(Debug)]
struct ClientOnRuntime {
    client: HttpClient,
    _io: IoRuntime,
}

#[async_trait]
impl HttpService for ClientOnRuntime {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.client.execute(request).await
    }
}
