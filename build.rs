//! With the feature `torch`: the program finds libtorch where it was built against, also when started by hand.
//!
//! `models/build.rs` says where that is, and how `cargo run` and `cargo test` find it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(folder) = std::env::var_os("DEP_FOREBAY_TORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.to_string_lossy());
    }
}
