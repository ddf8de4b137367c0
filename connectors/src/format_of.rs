//! The format of files, by their names and by their first bytes.

use forebay_actors::Fault;

use crate::file::DataFile;
use crate::format::Format;
use crate::input::Input;
use crate::text::decompress::TextCompression;
use crate::text::head::{BYTE_ORDER_MARK, read_head};

/// The format of an input, by the names of its files. Files whose names do not tell their format have the format of the first bytes of the
/// first such file: Parquet, Arrow, or an object of JSON. Other text is `default`, or else Criteo text. Other bytes are `default`, or else
/// the result of [`Format::of_files`]. Awaits a listing, and these bytes.
///
/// # Errors
/// A user fault if the files are of several formats; a fault of the store.
pub async fn format_of(input: &Input, default: Option<Format>) -> Result<Format, Fault> {
    let files = input.list().await?;
    let begins = match files.iter().find(|file| Format::from_extension(&file.name).is_none()) {
        None => Begins::Otherwise,
        Some(unnamed) => begins_as(unnamed).await?,
    };
    let default = match begins {
        Begins::As(format) => Some(format),
        Begins::Text => default.or(Some(Format::Criteo)),
        Begins::Otherwise => default,
    };
    Format::of_files(&files, default)
}

/// The kind of a file's first bytes.
pub(crate) enum Begins {
    /// The first bytes of this format alone.
    As(Format),
    /// Text, which may be CSV or Criteo text.
    Text,
    /// Something else.
    Otherwise,
}

/// The kind of a file's first bytes, unpacked if its name says that the file is packed.
pub(crate) async fn begins_as(file: &DataFile) -> Result<Begins, Fault> {
    if file.size == 0 {
        return Ok(Begins::Otherwise);
    }
    let head = match TextCompression::of(&file.name) {
        TextCompression::Plain => file.read(0..file.size.min(64)).await?.to_vec(),
        // A damaged file has no known beginning; the source says what is wrong with it.
        _ => read_head(file).await.unwrap_or_default(),
    };
    let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
    Ok(match text {
        // Parquet with an encrypted footer, too.
        [b'P', b'A', b'R', b'1' | b'E', ..] => Begins::As(Format::Parquet),
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Begins::As(Format::Arrow),
        text if text.trim_ascii_start().starts_with(b"{") => Begins::As(Format::JsonLines),
        text if is_text(text) => Begins::Text,
        _ => Begins::Otherwise,
    })
}

/// Whether these bytes are text: no control characters but tabs and line ends.
fn is_text(bytes: &[u8]) -> bool {
    let is_control = |byte: u8| byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
    !bytes.is_empty() && !bytes.iter().any(|&byte| is_control(byte))
}
