//! Columns are compressed where both ends are told so, and refused where they are not.

use std::sync::Arc;

use arrow::array::{Float32Array, RecordBatch, StringArray};
use forebay_actors::Domain;
use forebay_net::{Compression, Limits, Message, Security};

use crate::common::{LONG, Toys, dial, numbers};

fn limits(compression: Option<Compression>) -> Limits {
    Limits { compression, ..Limits::default() }
}

#[tokio::test]
async fn columns_come_back_as_they_were_by_either_codec() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        let toys = Toys::start(&Security::none(), &limits(Some(compression))).await;
        let peer = dial(&toys.address(), &Security::none(), &limits(Some(compression)));
        let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
        for rows in [0, 1, 3, 10_000] {
            // One that packs well, one that does not, one with nulls.
            let noise =
                (0..rows).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 7) as f32).collect::<Float32Array>();
            let text = (0..rows).map(|i| (i % 3 > 0).then(|| format!("{i:08x}"))).collect::<StringArray>();
            let number = numbers(7, rows).column(0).clone();
            let columns = [("n", number, true), ("x", Arc::new(noise) as _, true), ("t", Arc::new(text) as _, true)];
            let sent = Message::columns(RecordBatch::try_from_iter_with_nullable(columns).unwrap());
            outgoing.send(sent.clone()).await.unwrap();
            assert_eq!(incoming.next().await.unwrap(), Some(sent), "{compression:?}, {rows} rows");
        }
    }
}

#[tokio::test]
async fn compressed_columns_are_refused_where_plain_ones_or_others_are_expected() {
    for (accepted, said) in [
        (None, "columns compressed by LZ4_FRAME, and plain ones only are accepted here"),
        (Some(Compression::Zstd), "columns compressed by LZ4_FRAME, and Zstd only are accepted here"),
    ] {
        let toys = Toys::start(&Security::none(), &limits(accepted)).await;
        let peer = dial(&toys.address(), &Security::none(), &limits(Some(Compression::Lz4)));
        let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
        outgoing.send(Message::columns(numbers(0, 1000))).await.unwrap();
        let fault = incoming.next().await.unwrap_err();
        assert!(fault.to_string().contains(said), "{fault}");
        assert_eq!(fault.domain, Domain::User);
    }
}

#[tokio::test]
async fn what_unpacks_to_more_than_a_message_may_have_is_refused_before_it_is_unpacked() {
    let small = Limits { most_message_bytes: 100_000, ..limits(Some(Compression::Zstd)) };
    let toys = Toys::start(&Security::none(), &small).await;
    let peer = dial(&toys.address(), &Security::none(), &limits(Some(Compression::Zstd)));
    let (mut outgoing, mut incoming) = peer.exchange(&["toy", "echo"], LONG).await.unwrap();
    // A million times the same number: 8 MB that pack into some hundreds of bytes.
    let zeros = RecordBatch::try_from_iter([("n", Arc::new(Float32Array::from(vec![0.5; 2_000_000])) as _)]).unwrap();
    outgoing.send(Message::columns(zeros)).await.unwrap();
    let said = incoming.next().await.unwrap_err().to_string();
    assert!(said.contains("unpack to 8000000 bytes or more, of at most 100000"), "{said}");
}
