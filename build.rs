//! Nothing to find and nothing to download: device libraries are loaded at run time.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
