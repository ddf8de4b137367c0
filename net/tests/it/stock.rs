//! Stock Flight clients: arrow-flight's own, which knows nothing of our headers and copies where we do not.

use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::{Action, FlightClient, FlightDescriptor, Ticket};
use futures::{StreamExt, TryStreamExt, stream};
use tonic::transport::Endpoint;

use crate::common::{Toys, numbers};

async fn client(toys: &Toys) -> FlightClient {
    FlightClient::new(Endpoint::from_shared(format!("http://{}", toys.address())).unwrap().connect().await.unwrap())
}

#[tokio::test]
async fn lists_asks_and_reads_schemas() {
    let toys = Toys::plain().await;
    let mut client = client(&toys).await;
    let actions: Vec<_> = client.list_actions().await.unwrap().try_collect().await.unwrap();
    assert_eq!((actions[0].r#type.as_str(), actions[0].description.as_str()), ("toy.who", "who asks"));
    let answer: Vec<_> = client.do_action(Action::new("toy.who", "")).await.unwrap().try_collect().await.unwrap();
    assert_eq!(&answer[0][..], b"None");

    let infos: Vec<_> = client.list_flights("").await.unwrap().try_collect().await.unwrap();
    assert_eq!(infos[0].total_records, 5);
    let path = |last: &str| FlightDescriptor::new_path(vec!["toy".to_owned(), last.to_owned()]);
    let info = client.get_flight_info(path("numbers")).await.unwrap();
    assert_eq!(info.endpoint, infos[0].endpoint);
    assert_eq!(client.get_schema(path("numbers")).await.unwrap(), *numbers(0, 0).schema());
    let said = client.get_schema(path("letters")).await.unwrap_err().to_string();
    assert!(said.contains("nothing is found at the path `toy/letters`: there is `toy/numbers`"), "{said}");
    let said = client.get_schema(FlightDescriptor::new_cmd("SELECT 1")).await.unwrap_err().to_string();
    assert!(said.contains("a descriptor has a path here, no command"), "{said}");

    let ticket = infos[0].endpoint[0].ticket.clone().unwrap();
    let rows: Vec<_> = client.do_get(ticket).await.unwrap().try_collect().await.unwrap();
    assert_eq!(rows, (0..5).map(|n| numbers(n, 1)).collect::<Vec<_>>());
    let said = client.do_get(Ticket::new(r#"{"toy": 1}"#)).await.unwrap().next().await.unwrap().unwrap_err();
    assert!(said.to_string().contains("the ticket has no rows"), "{said}");
}

#[tokio::test]
async fn exchanges() {
    let toys = Toys::plain().await;
    let batches: Vec<_> = (0..5).map(|n| numbers(n, 10_000)).collect();
    let path = FlightDescriptor::new_path(vec!["toy".to_owned(), "echo".to_owned()]);
    let data =
        FlightDataEncoderBuilder::new().with_flight_descriptor(Some(path)).build(stream::iter(batches.clone()).map(Ok));
    let mut client = client(&toys).await;
    let back: Vec<_> = client.do_exchange(data).await.unwrap().try_collect().await.unwrap();
    assert_eq!(back, batches);
}

#[tokio::test]
async fn put_and_handshake_are_refused_with_what_to_use() {
    let toys = Toys::plain().await;
    let mut client = client(&toys).await;
    let data = FlightDataEncoderBuilder::new().build(stream::iter([Ok(numbers(0, 1))]));
    let said = client.do_put(data).await.map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("there is no DoPut: use DoExchange"), "{said}");
    let said = client.handshake("").await.unwrap_err().to_string();
    assert!(said.contains("send the token with each call"), "{said}");
}
