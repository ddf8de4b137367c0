//! Hostile bytes: the corpus of the fuzzer is read again, and streams that were damaged at random. For all input, the reader returns, holds
//! no more memory than the sent bytes allow, and lets in only valid columns.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::{Arc, Once};

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Float32Array, Int32Array, Int64Array, ListArray,
    NullArray, RecordBatch, StringArray, StringViewArray, StructArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int8Type};
use bytes::Bytes;
use forebay_actors::Domain;
use forebay_net::{Message, fuzzing};
use proptest::prelude::*;

/// Counts what a thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

// SAFETY: the system's allocator does the work; the counters are plain cells that allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads hostile bytes; at most so much may be held at once.
fn read(bytes: &[u8]) -> Option<Vec<Message>> {
    // Backtraces are large; panics of Arrow's reader are expected, and caught.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
    let before = HELD.get();
    MOST.set(before);
    let messages = fuzzing::read(bytes);
    let most = MOST.get() - before;
    let bound = (1 << 20) + 64 * bytes.len() as isize;
    assert!(most <= bound, "{most} bytes held for {} received", bytes.len());
    match messages {
        Ok(messages) => Some(messages),
        Err(fault) => {
            assert_eq!(fault.domain, Domain::User, "{fault}");
            None
        }
    }
}

fn numbers() -> RecordBatch {
    let floats = Float32Array::from_iter_values((0..32).map(|i| i as f32));
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let columns: [(&str, ArrayRef); 3] = [
        ("key", Arc::new(UInt64Array::from_iter_values(0..8))),
        ("label", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), None, None, None, None, None]))),
        ("row", Arc::new(FixedSizeListArray::new(item, 4, Arc::new(floats), None))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn nested() -> RecordBatch {
    let words = StringArray::from(vec![Some("one"), None, Some("drei")]);
    let lists = ListArray::from_iter_primitive::<Float32Type, _, _>([Some(vec![Some(1.0), None]), None, Some(vec![])]);
    let categories: DictionaryArray<Int8Type> = ["a", "b", "a"].into_iter().collect();
    let inner = Arc::new(Int32Array::from(vec![1, 2, 3])) as ArrayRef;
    let columns: [(&str, ArrayRef); 6] = [
        ("word", Arc::new(words)),
        ("view", Arc::new(StringViewArray::from(vec!["short", "a string that is longer than twelve", "x"]))),
        ("list", Arc::new(lists)),
        ("category", Arc::new(categories)),
        ("struct", Arc::new(StructArray::from(vec![(Arc::new(Field::new("i", DataType::Int32, false)), inner)]))),
        ("nothing", Arc::new(NullArray::new(3))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn streams() -> Vec<Vec<Message>> {
    let with_note =
        |batch: RecordBatch| Message { batch: Some(batch), metadata: Bytes::from_static(b"{\"window\":7}") };
    vec![
        vec![with_note(numbers()), Message::metadata("a metadata"), Message::columns(numbers().slice(2, 3))],
        vec![Message::columns(nested()), with_note(nested().slice(1, 2))],
        vec![Message::metadata("only a metadata")],
    ]
}

#[test]
fn what_is_written_is_read() {
    for messages in streams() {
        let bytes = fuzzing::written(&messages).unwrap();
        assert_eq!(read(&bytes).expect("nothing is wrong with it"), messages);
    }
}

#[test]
fn large_columns_are_not_copied_on_the_way_out() {
    let batch = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(0..1 << 17)) as _)]).unwrap();
    let message = Message::columns(batch);
    // `written` joins all pieces, once; a second copy would double it.
    MOST.set(HELD.get());
    let before = HELD.get();
    let bytes = fuzzing::written(std::slice::from_ref(&message)).unwrap();
    let most = (MOST.get() - before) as usize;
    assert!(most < bytes.len() * 3 / 2, "{most} bytes held to write {}", bytes.len());
}

#[test]
fn the_corpus_is_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/message");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus lies beside the crate") {
        let path = entry.unwrap().path();
        let outcome = read(&std::fs::read(&path).unwrap());
        let name = path.file_name().unwrap().to_string_lossy();
        // Files without a dash are the fuzzer's, which may be either.
        if let Some((kind, _)) = name.split_once('-') {
            assert_eq!(outcome.is_some(), kind == "good", "{name}");
        }
        files += 1;
    }
    assert!(files >= 8, "{files} files");
}

/// One change to a stream.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Long(usize, i64),
    Int(usize, i32),
    Cut(usize),
    Repeat(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let anywhere = || 0_usize..4096;
    let longs = prop_oneof![Just(i64::MAX), Just(i64::MIN), Just(-1), Just(1 << 31), Just(1 << 40), -70..70_i64];
    let ints = prop_oneof![Just(i32::MAX), Just(i32::MIN), Just(-1), Just(1 << 24), -70..70_i32];
    prop_oneof![
        4 => (anywhere(), 1_u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        3 => (anywhere(), longs).prop_map(|(at, to)| Damage::Long(at, to)),
        3 => (anywhere(), ints).prop_map(|(at, to)| Damage::Int(at, to)),
        1 => anywhere().prop_map(Damage::Cut),
        1 => (anywhere(), 1_usize..64).prop_map(|(at, len)| Damage::Repeat(at, len)),
    ]
}

fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        let len = bytes.len();
        match *damage {
            _ if len < 16 => {}
            Damage::Flip(at, bits) => bytes[at % len] ^= bits,
            // Numbers of flatbuffers are aligned within a header, wherever that begins.
            Damage::Long(at, to) => bytes[at % (len - 8)..][..8].copy_from_slice(&to.to_le_bytes()),
            Damage::Int(at, to) => bytes[at % (len - 4)..][..4].copy_from_slice(&to.to_le_bytes()),
            Damage::Cut(at) => bytes.truncate(at % len),
            Damage::Repeat(at, repeat) => {
                let at = at % len;
                let again = bytes[at..(at + repeat).min(len)].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_streams_are_read_or_refused(which in 0_usize..3, damages in prop::collection::vec(damage(), 1..4)) {
        let bytes = fuzzing::written(&streams()[which]).unwrap();
        read(&damaged(bytes, &damages));
    }

    #[test]
    fn garbage_is_read_or_refused(garbage in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&garbage);
        // As the header of a well-formed message, too.
        let mut message = vec![0, 0, 0, 0, 0, 0x12];
        let mut len = garbage.len();
        while len >= 0x80 {
            message.push(len as u8 | 0x80);
            len >>= 7;
        }
        message.push(len as u8);
        message.extend(&garbage);
        let claimed = (message.len() - 5) as u32;
        message[1..5].copy_from_slice(&claimed.to_be_bytes());
        read(&message);
    }
}

/// Numbers that lie, one at a time: all places of a stream, with values that are too large, negative, or one off.
#[test]
fn every_number_may_lie() {
    for messages in streams() {
        let bytes = fuzzing::written(&messages).unwrap();
        for at in 0..bytes.len() - 8 {
            for to in [-1, 1 << 31, i64::MAX] {
                read(&damaged(bytes.clone(), &[Damage::Long(at, to)]));
            }
        }
    }
}

/// Writes the files of the corpus that are made here: `cargo test -p forebay-net --test corpus -- --ignored`.
#[test]
#[ignore = "writes files"]
fn write_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/message");
    std::fs::create_dir_all(&folder).unwrap();
    for (i, messages) in streams().iter().enumerate() {
        let bytes = fuzzing::written(messages).unwrap();
        std::fs::write(folder.join(format!("good-{i}")), &bytes).unwrap();
        let file = |name: &str, damage: Damage| {
            std::fs::write(folder.join(format!("{name}-{i}")), damaged(bytes.clone(), &[damage])).unwrap();
        };
        file("cut", Damage::Cut(bytes.len() * 2 / 3));
        file("compressed", Damage::Flip(0, 1));
        file("length", Damage::Int(1, -1));
    }
}
