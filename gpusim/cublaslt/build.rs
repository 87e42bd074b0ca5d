//! Names the library as programs look for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcublasLt.so.13");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
