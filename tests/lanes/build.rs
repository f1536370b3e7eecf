//! Says that `loom` is there.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
