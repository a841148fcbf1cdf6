//! The arguments of Prometheus's node exporter.

use std::net::{IpAddr, SocketAddr};

use quorate_core::model::NODE_EXPORTER_PORT as PORT;

/// It answers on the machine's own address alone, where the firewall says who may ask.
pub(super) fn render(address: IpAddr) -> String {
    let listen = SocketAddr::new(address, PORT);
    format!("# Written by quorate; changes are lost.\nARGS=\"--web.listen-address={listen}\"\n")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn scrape(address: IpAddr) -> Option<String> {
        let mut stream = TcpStream::connect((address, PORT)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// As its unit does: with the words of `ARGS`.
    #[test]
    fn the_real_one_takes_the_arguments_and_answers_there_and_nowhere_else() {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let [here, elsewhere] = [207, 208].map(|block| IpAddr::from([127, block, high, low]));
        let text = render(here);
        let arguments = text.lines().find_map(|line| line.strip_prefix("ARGS=\"")?.strip_suffix('"')).unwrap();
        let mut command = Command::new(super::super::of_the_lab(&super::super::NODE_EXPORTER));
        command.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
        let _exporter = Running(command.spawn().unwrap());
        let begun = Instant::now();
        let told = loop {
            if let Some(told) = scrape(here) {
                break told;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not answer");
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(told.starts_with("HTTP/1.0 200") && told.contains("\nnode_memory_MemTotal_bytes "), "{told}");
        assert_eq!(scrape(elsewhere), None);
    }

    #[test]
    fn it_listens_on_the_machines_own_address() {
        let address = "10.0.0.1".parse().unwrap();
        assert!(render(address).ends_with("\nARGS=\"--web.listen-address=10.0.0.1:9100\"\n"));
        assert!(render("fd00::1".parse().unwrap()).contains("=[fd00::1]:9100\""));
    }
}
