//! Compiles the bridge to weightstream-generate; its header is `cxxbridge/weightstream-text/src/lib.rs.h`.

fn main() {
    cxx_build::bridge("src/lib.rs")
        .std("c++17")
        .compile("weightstream_text_bridge");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/lib.rs");
}
