//! Makes programs find libtorch at run time, when the feature `torch` is on; otherwise does nothing.
//!
//! `torch-sys` says where libtorch's libraries are. Two things have to happen with that folder:
//! - `cargo run`, `cargo test` and doctests, of any crate of the workspace: cargo puts native search paths on the run-time
//!   library path, but only those under its target folder. Hence the link inside `OUT_DIR`, given as a search path.
//! - a program started by hand needs an rpath, and a build script can set that only for binaries of its own crate. So the
//!   folder is passed on as metadata, and **the build script of each crate with binaries** that turns `torch` on says:
//!
//! ```ignore
//! fn main() {
//!     println!("cargo:rerun-if-changed=build.rs");
//!     if let Some(folder) = std::env::var_os("DEP_FOREBAY_TORCH_LIB") {
//!         println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.to_string_lossy());
//!     }
//! }
//! ```
//!
//! The variable is there for direct dependents of this crate only, and only with the feature on.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let Some(folder) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") else {
        return;
    };
    // A relative LIBTORCH is relative to the folder cargo was started in, which a build script does not see.
    let folder = match std::fs::canonicalize(&folder) {
        Ok(folder) => folder,
        Err(error) => {
            println!("cargo:warning=libtorch's folder {}: {error}; run scripts/setup-libtorch", folder.display());
            return;
        }
    };
    let link = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("libtorch");
    let _ = std::fs::remove_file(&link);
    #[cfg(unix)]
    std::os::unix::fs::symlink(&folder, &link).expect("OUT_DIR can be written");
    println!("cargo:rustc-link-search=native={}", link.display());
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
    println!("cargo:lib={}", folder.display());
}
