//! A client of a PostgreSQL cluster that commits one row after the other, and prints a line for each confirmed commit. libpq's
//! variables say where to connect; it exits at the end of its standard input. `cargo xtask bench postgres` reads the lines.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use quorate_agent::dial::Dial;
use quorate_drill::kinds::postgres::session::{Access, Certificate, Host, Session, tls};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

const TABLE: &str = "create table if not exists written (at timestamptz)";
const WRITE: &str = "insert into written values (clock_timestamp())";
/// Longer than any commit takes that is not held up.
const ANSWER: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), String> {
    let (access, hosts) = (access()?, hosts()?);
    let (ended, end) = oneshot::channel();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        let _ = ended.send(());
    });
    tokio::select! {
        _ = end => Ok(()),
        () = write(&access, &hosts) => Ok(()),
    }
}

async fn write(access: &Access, hosts: &[Host]) {
    loop {
        if let Ok(session) = Session::open_writable(access, hosts).await
            && session.rows(TABLE).await.is_ok()
        {
            while let Ok(Ok(_)) = timeout(ANSWER, session.rows(WRITE)).await {
                let mut output = std::io::stdout();
                if writeln!(output, "committed").and_then(|()| output.flush()).is_err() {
                    return;
                }
                sleep(PAUSE).await;
            }
        }
        sleep(PAUSE).await;
    }
}

fn access() -> Result<Access, String> {
    let shown = env::var("PGSSLCERT").is_ok().then(|| Ok::<_, String>((file("PGSSLCERT")?, file("PGSSLKEY")?)));
    let shown = shown.transpose()?;
    let shown = shown.as_ref().map(|(chain, key)| Certificate { chain, key });
    Ok(Access {
        user: variable("PGUSER")?,
        password: variable("PGPASSWORD")?,
        database: variable("PGDATABASE")?,
        tls: tls(&file("PGSSLROOTCERT")?, shown)?,
        dial: Dial::Address,
    })
}

/// One port for all, or one for each.
fn hosts() -> Result<Vec<Host>, String> {
    let (hosts, ports) = (variable("PGHOST")?, variable("PGPORT")?);
    let mut ports = ports.split(',').cycle();
    let host = |address: &str| {
        let port = ports.next().unwrap_or_default();
        let ip: IpAddr = address.parse().map_err(|_| format!("PGHOST: {address} is not an address"))?;
        let port = port.parse().map_err(|_| format!("PGPORT: {port} is not a port"))?;
        Ok(Host { name: address.to_owned(), address: SocketAddr::new(ip, port) })
    };
    hosts.split(',').map(host).collect()
}

fn file(name: &str) -> Result<String, String> {
    let path = variable(name)?;
    fs::read_to_string(&path).map_err(|error| format!("{name}: cannot read {path}: {error}"))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set"))
}
