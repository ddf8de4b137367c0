//! Makes a file of a corpus from each manifest: `pack CORPUS MANIFEST...`.

use std::path::PathBuf;

use forebay_pipelines_fuzz::pack;
use xxhash_rust::xxh3::xxh3_128;

fn main() -> std::io::Result<()> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let corpus = paths.next().unwrap_or_else(|| PathBuf::from("corpus/checkpoint"));
    std::fs::create_dir_all(&corpus)?;
    for manifest in paths {
        let bytes = pack(&manifest)?;
        std::fs::write(corpus.join(format!("{:012x}", xxh3_128(&bytes) >> 80)), bytes)?;
    }
    Ok(())
}
