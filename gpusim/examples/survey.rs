//! Reads PTX files and says which of them the simulator can run: `cargo run -p tlc-gpusim --example survey -- FILES`.

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).unwrap();
        match tlc_gpusim::Module::parse(&text) {
            Ok(m) => println!("{path}: ok {:?}", m.kernels()),
            Err(e) => println!("{path}: {e}"),
        }
    }
}
