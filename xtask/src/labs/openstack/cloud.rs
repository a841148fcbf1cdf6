//! The running cloud: its root file system, its processes, and requests to them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cache::{self, Cache};
use crate::{host, labs};

const COMMON: &str = include_str!("etc/common.conf");
const PLACEMENT: &str = include_str!("etc/placement.conf");
/// Files of the root, and what is in them.
const FILES: [(&str, &str); 14] = [
    ("etc/lab/common.conf", COMMON),
    ("etc/lab/keystone.conf", include_str!("etc/keystone.conf")),
    ("etc/lab/glance.conf", include_str!("etc/glance.conf")),
    ("etc/lab/placement.conf", PLACEMENT),
    ("etc/lab/nova.conf", include_str!("etc/nova.conf")),
    ("etc/lab/keeping.conf", include_str!("etc/keeping.conf")),
    ("etc/lab/real.conf", include_str!("etc/real.conf")),
    ("etc/lab/neutron.conf", include_str!("etc/neutron.conf")),
    ("etc/lab/linuxbridge.ini", include_str!("etc/linuxbridge.ini")),
    ("etc/lab/cinder.conf", include_str!("etc/cinder.conf")),
    ("etc/lab/nfs-shares", "127.0.0.1:/var/lib/lab/volumes\n"),
    ("etc/openstack/clouds.yaml", include_str!("etc/clouds.yaml")),
    ("etc/libvirt/qemu.conf", QEMU_CONF),
    ("usr/lib/python3/dist-packages/quorate_lab_records.py", include_str!("records.py")),
];
const QEMU_CONF: &str = "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\nremember_owner = 0\n\
    cgroup_controllers = []\nnamespaces = []\n";
/// Has neutron find its driver.
const PLUGIN: &str = "usr/lib/python3/dist-packages/quorate_lab-1.dist-info";
const ENTRY_POINTS: &str = "[neutron.ml2.mechanism_drivers]\nrecords = quorate_lab_records:Driver\n";
const MOUNT_NFS: &str = include_str!("mount.nfs");
const CATALOGUE: &str = include_str!("catalogue.py");
const CLOUD: &str = include_str!("cloud.py");
const IMAGES: &str = include_str!("images.py");
const LEFT: &str = include_str!("left.py");
const TOGETHER: &str = include_str!("together.py");

const PLACE: &str = "/run/quorate-openstack";
const DIRECTORIES: [&str; 14] = [
    "etc/lab/placement",
    "run/lab/locks",
    "run/lock",
    "run/libvirt",
    "var/log/lab",
    "var/lib/lab/cinder/mnt",
    "var/lib/lab/images",
    "var/lib/lab/neutron",
    "var/lib/lab/nova/instances",
    "var/lib/lab/nova/mnt",
    "var/lib/lab/rabbit",
    "var/lib/lab/staging",
    "var/lib/lab/tasks",
    "var/lib/lab/volumes",
];
/// What of the root is kept of a cloud that is set up.
const STATE: [&str; 3] = ["var/lib/lab/mysql", "etc/lab/fernet", "etc/lab/credential"];
const DATABASES: [&str; 8] = ["keystone", "glance", "placement", "nova_api", "nova", "nova_cell0", "neutron", "cinder"];
const SOCKET: &str = "--socket=/run/lab/mysql.sock";
/// The lab's end of the network that machines are on, and the end that neutron bridges them with.
const LINK: [&str; 2] = ["lab", "lab-port"];
/// The gateway, and where machines ask for their metadata.
const ADDRESSES: [&str; 2] = ["10.80.0.1/16", "169.254.169.254/32"];
/// Hosts whose guests are records.
const FAKE_HOSTS: [&str; 3] = ["fake1", "fake2", "fake3"];
/// An image that nothing boots.
const RECORD_BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(200);

/// All that a cloud is set up with.
pub fn sources() -> impl std::hash::Hash {
    (FILES, [CATALOGUE, CLOUD, MOUNT_NFS, TOGETHER])
}

/// What a cloud has besides its control plane and the hosts whose guests are records.
#[derive(Clone, Copy)]
pub struct With {
    /// The host whose guests are emulated.
    pub machines: bool,
    /// The region that keeps deleted servers.
    pub keeping: bool,
}

pub struct Cloud {
    root: PathBuf,
    with: With,
    begun: Instant,
    daemons: Mutex<Vec<(String, Child)>>,
}

impl Cloud {
    /// A cloud that was set up before.
    pub fn start(cache: &Cache, with: With) -> Result<Self> {
        let cloud = Self::in_root(&[&cache.state, &cache.root], with)?;
        cloud.start_databases()?;
        cloud.start_identity()?;
        cloud.start_services()?;
        cloud.await_services().inspect_err(|_| cloud.show_troubles())?;
        Ok(cloud)
    }

    /// A new one. What must not be done again at each start is kept.
    pub fn set_up(cache: &Cache) -> Result<()> {
        let cloud = Self::in_root(&[&cache.root], With { machines: true, keeping: false })?;
        cloud.install().inspect_err(|_| cloud.show_troubles())?;
        cloud.run(&["mariadb-admin", "--no-defaults", SOCKET, "shutdown"])?;
        for (_, daemon) in
            cloud.daemons.lock().expect("no thread fails with it").iter_mut().filter(|(name, _)| name == "mariadb")
        {
            daemon.wait().context("the database does not end")?;
        }
        let finished = cache.state.with_extension("new");
        let _ = fs::remove_dir_all(&finished);
        for below in STATE {
            let parent = finished.join(below);
            let parent = parent.parent().context("state in no directory")?;
            fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
            host::run(Command::new("cp").arg("-a").arg(cloud.root.join(below)).arg(parent))?;
        }
        cache::put(&finished, &cache.state)
    }

    fn in_root(layers: &[&PathBuf], with: With) -> Result<Self> {
        let root = Path::new(PLACE).join("root");
        let cloud = Cloud { root, with, begun: Instant::now(), daemons: Mutex::default() };
        cloud.make_root(layers)?;
        cloud.fill_root()?;
        make_network()?;
        Ok(cloud)
    }

    /// Layers of the cache below one in memory.
    fn make_root(&self, layers: &[&PathBuf]) -> Result<()> {
        let mount = |words: &[&str]| host::run(Command::new("mount").args(words));
        mount(&["--make-rprivate", "/"])?;
        // The one that is there shows the network interfaces outside.
        mount(&["-t", "sysfs", "sysfs", "/sys"])?;
        fs::create_dir_all(PLACE).with_context(|| format!("cannot create {PLACE}"))?;
        mount(&["-t", "tmpfs", "tmpfs", PLACE])?;
        labs::keep_namespaces_to_itself()?;
        for name in ["root", "upper", "work"] {
            fs::create_dir(Path::new(PLACE).join(name)).with_context(|| format!("cannot create {name}"))?;
        }
        let lower: Vec<String> = layers.iter().map(|layer| layer.display().to_string()).collect();
        let options = format!("lowerdir={},upperdir={PLACE}/upper,workdir={PLACE}/work", lower.join(":"));
        let root = self.root.to_string_lossy();
        mount(&["-t", "overlay", "overlay", "-o", &options, &root])?;
        ["proc", "dev", "sys"]
            .iter()
            .try_for_each(|name| mount(&["--rbind", &format!("/{name}"), &format!("{root}/{name}")]))?;
        mount(&["-t", "tmpfs", "tmpfs", &format!("{root}/run")])
    }

    fn fill_root(&self) -> Result<()> {
        for below in DIRECTORIES {
            fs::create_dir_all(self.root.join(below)).with_context(|| format!("cannot create {below}"))?;
        }
        FILES.iter().try_for_each(|(below, content)| self.put(below, content))?;
        for host in FAKE_HOSTS {
            let settings = format!("[DEFAULT]\nhost = {host}\ncompute_driver = fake.FakeDriver\n");
            self.put(&format!("etc/lab/{host}.conf"), &settings)?;
        }
        // Placement reads one file alone.
        self.put("etc/lab/placement/placement.conf", &format!("{COMMON}\n{PLACEMENT}"))?;
        self.put(&format!("{PLUGIN}/METADATA"), "Metadata-Version: 2.1\nName: quorate-lab\nVersion: 1\n")?;
        self.put(&format!("{PLUGIN}/entry_points.txt"), ENTRY_POINTS)?;
        let hostname = host::read(&mut Command::new("hostname"))?;
        self.put("etc/hosts", &format!("127.0.0.1 localhost {hostname}"))?;
        self.put("etc/resolv.conf", "")?;
        let mount_nfs = "usr/sbin/mount.nfs";
        self.put(mount_nfs, MOUNT_NFS)?;
        fs::set_permissions(self.root.join(mount_nfs), fs::Permissions::from_mode(0o755))
            .context("cannot make it a program")
    }

    fn put(&self, below: &str, content: &str) -> Result<()> {
        let path = self.root.join(below);
        path.parent().map_or(Ok(()), fs::create_dir_all).with_context(|| format!("no directory for {below}"))?;
        fs::write(&path, content).with_context(|| format!("cannot write {below}"))
    }

    /// A command in the root, as a service has it.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command.arg(&self.root).args(words).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root").env("LANG", "C.UTF-8");
        command.env("PYTHONWARNINGS", "ignore");
        command
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        host::read(&mut self.command(words))
    }

    /// A script of Python, with these arguments.
    fn python(&self, script: &str, arguments: &[String]) -> Result<String> {
        host::read(self.command(&["python3", "-c", script]).args(arguments))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.root.join("var/log/lab").join(format!("{name}.log"))
    }

    fn daemon(&self, name: &str, command: &mut Command) -> Result<()> {
        let log = || File::options().create(true).append(true).open(self.log(name)).context("cannot write a log");
        let child = command.stdin(Stdio::null()).stdout(log()?).stderr(log()?).spawn();
        let child = child.with_context(|| format!("cannot start {name}"))?;
        self.daemons.lock().expect("no thread fails with it").push((name.to_owned(), child));
        Ok(())
    }

    fn start_databases(&self) -> Result<()> {
        let mut database = self.command(&["mariadbd", "--no-defaults", "--user=root", SOCKET, "--skip-networking"]);
        database.args(["--datadir=/var/lib/lab/mysql", "--max-connections=500", "--innodb-log-file-size=24M"]);
        self.daemon("mariadb", database.arg("--innodb-flush-log-at-trx-commit=0"))?;
        let mut rabbit = self.command(&["/usr/lib/rabbitmq/bin/rabbitmq-server"]);
        rabbit.env("HOME", "/var/lib/lab/rabbit").env("RABBITMQ_NODENAME", "lab@localhost");
        rabbit.env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1").env("RABBITMQ_LOG_BASE", "/var/log/lab");
        rabbit.env("RABBITMQ_MNESIA_BASE", "/var/lib/lab/rabbit/mnesia");
        self.daemon("rabbitmq", rabbit.env("RABBITMQ_ENABLED_PLUGINS_FILE", "/etc/lab/no-plugins"))?;
        self.until("the database", || Ok(self.sql("SELECT 1").is_ok()))
    }

    fn sql(&self, statement: &str) -> Result<String> {
        self.run(&["mariadb", "--no-defaults", SOCKET, "--skip-column-names", "-e", statement])
    }

    /// Keystone and placement, which are no servers themselves.
    fn start_identity(&self) -> Result<()> {
        let mut keystone = self.wsgi("/usr/bin/keystone-wsgi-public", 5000);
        self.daemon("keystone", keystone.env("OS_KEYSTONE_CONFIG_FILES", "/etc/lab/keystone.conf"))?;
        let mut placement = self.wsgi("/usr/bin/placement-api", 8778);
        self.daemon("placement", placement.env("OS_PLACEMENT_CONFIG_DIR", "/etc/lab/placement"))
    }

    fn wsgi(&self, file: &str, port: u16) -> Command {
        let mut uwsgi = self.command(&["uwsgi", "--plugin", "python3", "--wsgi-file", file]);
        uwsgi.args(["--master", "--processes", "1", "--threads", "8", "--enable-threads", "--lazy-apps", "--need-app"]);
        uwsgi.args(["--buffer-size", "65535", "--add-header", "Connection: close"]);
        uwsgi.args(["--http-socket", &format!("127.0.0.1:{port}")]);
        uwsgi
    }

    fn start_services(&self) -> Result<()> {
        for name in ["virtlogd", "libvirtd"].into_iter().filter(|_| self.with.machines) {
            self.daemon(name, &mut self.command(&[name]))?;
        }
        // Services that do not find it wait longer and longer before they try again.
        self.until("the queue", || Ok(connect(5672).is_ok()))?;
        let of = |program: &str, own: &[&str]| {
            let mut command = self.command(&[program]);
            command.args(settings(own));
            command
        };
        self.daemon("neutron", &mut of("neutron-server", &["neutron.conf"]))?;
        self.daemon("glance", &mut of("glance-api", &["glance.conf"]))?;
        if self.with.machines {
            self.daemon("linuxbridge", &mut of("neutron-linuxbridge-agent", &["neutron.conf", "linuxbridge.ini"]))?;
        }
        let nova: Vec<Service> = ["api", "conductor", "scheduler"]
            .map(|name| Service { module: format!("nova.cmd.{name}"), log: format!("nova-{name}"), own: None })
            .into_iter()
            .chain(FAKE_HOSTS.iter().chain(self.with.machines.then_some(&"real")).map(|host| Service {
                module: String::from("nova.cmd.compute"),
                log: format!("nova-compute-{host}"),
                own: Some(format!("{host}.conf")),
            }))
            .chain(self.with.keeping.then(|| Service {
                module: String::from("nova.cmd.api"),
                log: String::from("nova-api-keeping"),
                own: Some(String::from("keeping.conf")),
            }))
            .collect();
        self.start_together("nova", &nova)?;
        let cinder = ["api", "scheduler", "volume"].map(|name| Service {
            module: format!("cinder.cmd.{name}"),
            log: format!("cinder-{name}"),
            own: None,
        });
        self.start_together("cinder", &cinder)
    }

    fn start_together(&self, project: &str, services: &[Service]) -> Result<()> {
        let mut command = self.command(&["python3", "-c", TOGETHER]);
        for service in services {
            let all = [format!("{project}.conf")].into_iter().chain(service.own.clone());
            let all: Vec<String> = all.collect();
            command.arg(format!("{}:/var/log/lab/{}.log", service.module, service.log));
            command.args(settings(&all.iter().map(String::as_str).collect::<Vec<_>>())).arg("--");
        }
        self.daemon(project, &mut command)
    }

    fn await_services(&self) -> Result<()> {
        let services = [
            ("keystone", 5000, "/v3"),
            ("placement", 8778, "/"),
            ("glance", 9292, "/"),
            ("neutron", 9696, "/"),
            ("cinder", 8776, "/"),
            ("nova", 8774, "/"),
        ];
        let keeping = self.with.keeping.then_some(("nova that keeps deleted servers", 8784, "/"));
        services
            .into_iter()
            .chain(keeping)
            .try_for_each(|(name, port, path)| self.until(name, || Ok(answers(port, path))))?;
        let machines = usize::from(self.with.machines);
        // Who has not reported since the start is not seen as being there.
        let reports = [
            (
                "every host of nova",
                FAKE_HOSTS.len() + machines,
                "nova.services WHERE `binary` = 'nova-compute' AND",
                "last_seen_up",
            ),
            ("the agent of networks", machines, "neutron.agents WHERE", "heartbeat_timestamp"),
            ("the host of volumes", 1, "cinder.services WHERE `binary` = 'cinder-volume' AND", "updated_at"),
        ];
        reports.iter().try_for_each(|(what, count, table, column)| {
            self.until(what, || {
                let since = self.begun.elapsed().as_secs();
                let condition = format!("TIMESTAMPDIFF(SECOND, {column}, UTC_TIMESTAMP()) < {since}");
                let found = self.sql(&format!("SELECT COUNT(*) FROM {table} {condition}"))?;
                Ok(found.trim().parse::<usize>().is_ok_and(|found| found >= *count))
            })
        })
    }

    /// Waits until it is so, and says when.
    fn until(&self, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !is_so()? {
            self.all_run()?;
            ensure!(begun.elapsed() < PATIENCE, "{what} is not there after {} s", PATIENCE.as_secs());
            sleep(PAUSE);
        }
        eprintln!("{:6.1} s  {what}", self.begun.elapsed().as_secs_f64());
        Ok(())
    }

    fn all_run(&self) -> Result<()> {
        for (name, child) in self.daemons.lock().expect("no thread fails with it").iter_mut() {
            if let Some(status) = child.try_wait().with_context(|| format!("cannot look at {name}"))? {
                let log = fs::read_to_string(self.log(name)).unwrap_or_default();
                bail!("{name} ended: {status}\n{}", last_lines(&log, 20));
            }
        }
        Ok(())
    }

    /// What an operator does once.
    fn install(&self) -> Result<()> {
        let mut make = self.command(&["mariadb-install-db", "--no-defaults", "--user=root"]);
        host::read(make.args(["--datadir=/var/lib/lab/mysql", "--auth-root-authentication-method=normal"]))?;
        self.start_databases()?;
        let create = DATABASES.map(|name| format!("CREATE DATABASE {name} CHARACTER SET utf8mb3;")).concat();
        self.sql(&create)?;
        self.make_schemas()?;
        self.start_identity()?;
        self.until("keystone", || Ok(answers(5000, "/v3")))?;
        self.python(CATALOGUE, &[])?;
        self.start_services()?;
        self.await_services()?;
        self.manage("nova-manage", &["nova.conf"], &["cell_v2", "discover_hosts"])?;
        self.python(CLOUD, &[])?;
        eprintln!("{:6.1} s  the cloud is set up", self.begun.elapsed().as_secs_f64());
        Ok(())
    }

    fn make_schemas(&self) -> Result<()> {
        let sync = |program: &str, own: &str, words: &[&str]| self.manage(program, &[own], words);
        std::thread::scope(|scope| {
            let works = [
                scope.spawn(|| self.make_identity()),
                scope.spawn(|| self.make_cells()),
                scope.spawn(|| sync("glance-manage", "glance.conf", &["db_sync"])),
                scope.spawn(|| sync("placement-manage", "placement.conf", &["db", "sync"])),
                scope.spawn(|| sync("neutron-db-manage", "neutron.conf", &["upgrade", "heads"])),
                scope.spawn(|| sync("cinder-manage", "cinder.conf", &["db", "sync"])),
            ];
            works.into_iter().try_for_each(|work| work.join().unwrap_or_else(|_| bail!("a thread ended")))
        })
    }

    fn make_identity(&self) -> Result<()> {
        const URL: &str = "http://127.0.0.1:5000/v3";
        for keys in ["etc/lab/fernet", "etc/lab/credential"] {
            let keys = self.root.join(keys);
            fs::create_dir_all(&keys).with_context(|| format!("cannot create {}", keys.display()))?;
            fs::set_permissions(&keys, fs::Permissions::from_mode(0o700)).context("cannot close a directory")?;
        }
        let manage = |words: &[&str]| self.manage("keystone-manage", &["keystone.conf"], words);
        manage(&["db_sync"])?;
        for keys in ["fernet_setup", "credential_setup"] {
            manage(&[keys, "--keystone-user", "root", "--keystone-group", "root"])?;
        }
        let urls = ["public", "internal", "admin"].map(|interface| format!("--bootstrap-{interface}-url={URL}"));
        let words = ["bootstrap", "--bootstrap-password=lab", "--bootstrap-region-id=RegionOne"];
        let words: Vec<&str> = words.into_iter().chain(urls.iter().map(String::as_str)).collect();
        manage(&words)
    }

    fn make_cells(&self) -> Result<()> {
        const CELL0: &str = "mysql+pymysql://root@localhost/nova_cell0?unix_socket=/run/lab/mysql.sock";
        let manage = |words: &[&str]| self.manage("nova-manage", &["nova.conf"], words);
        manage(&["api_db", "sync"])?;
        manage(&["cell_v2", "map_cell0", "--database_connection", CELL0])?;
        manage(&["cell_v2", "create_cell", "--name", "cell1"])?;
        manage(&["db", "sync"])
    }

    fn manage(&self, program: &str, own: &[&str], words: &[&str]) -> Result<()> {
        host::read(self.command(&[program]).args(settings(own)).args(words)).map(drop)
    }

    /// An image that nothing boots, and that of machines where there are any.
    pub fn upload(&self, machine: Option<&Path>) -> Result<()> {
        fs::write(self.root.join("var/lib/lab/record.raw"), vec![0; RECORD_BYTES]).context("cannot write an image")?;
        let mut images = vec![String::from("record=raw=/var/lib/lab/record.raw")];
        if let Some(machine) = machine {
            let place = self.root.join("var/lib/lab/machine.qcow2");
            // Seen, not copied.
            fs::write(&place, "").context("cannot make a place for the image")?;
            host::run(Command::new("mount").args(["--bind", "-o", "ro"]).arg(machine).arg(&place))?;
            images.push(String::from("machine=qcow2=/var/lib/lab/machine.qcow2"));
        }
        self.python(IMAGES, &images)?;
        eprintln!("{:6.1} s  images", self.begun.elapsed().as_secs_f64());
        Ok(())
    }

    /// Addresses and users, as every client of OpenStack reads them.
    pub fn clouds(&self) -> PathBuf {
        self.root.join("etc/openstack/clouds.yaml")
    }

    /// A program that is the command line of OpenStack, for the user that quorate is.
    pub fn client(&self) -> Result<PathBuf> {
        let path = Path::new(PLACE).join("openstack");
        let root = self.root.display();
        let environment = "PATH=/usr/bin:/bin HOME=/root LANG=C.UTF-8 PYTHONWARNINGS=ignore OS_CLOUD=quorate";
        let script = format!("#!/bin/sh\nexec env -i {environment} /usr/sbin/chroot {root} openstack \"$@\"\n");
        fs::write(&path, script).context("cannot write the client")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).context("cannot make it a program")?;
        Ok(path)
    }

    /// Fails if the suites left anything behind.
    pub fn nothing_is_left(&self) -> Result<()> {
        let left = self.python(LEFT, &[])?;
        let list: &[&str] = if self.with.machines { &["virsh", "list", "--all", "--name"] } else { &["true"] };
        let domains = self.run(list)?;
        let left: Vec<&str> = left.lines().chain(domains.split_whitespace()).collect();
        ensure!(left.is_empty(), "the suite has left:\n{}", left.join("\n"));
        eprintln!("nothing was left behind");
        Ok(())
    }

    /// The last errors of each service.
    pub fn show_troubles(&self) {
        let logs = fs::read_dir(self.root.join("var/log/lab")).into_iter().flatten().flatten();
        for log in logs.map(|entry| entry.path()) {
            let text = fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let errors: Vec<&str> = text.lines().filter(|line| line.contains(" ERROR ")).collect();
            if !errors.is_empty() {
                eprintln!("{}:\n{}", log.display(), last_lines(&errors.join("\n"), 10));
            }
        }
    }
}

/// A service that is started with others of its project.
struct Service {
    module: String,
    log: String,
    /// Settings that the others do not have.
    own: Option<String>,
}

/// Arguments that name the files of settings.
fn settings(own: &[&str]) -> Vec<String> {
    let files = ["common.conf"].iter().chain(own);
    files.map(|file| format!("--config-file=/etc/lab/{file}")).collect()
}

fn make_network() -> Result<()> {
    let ip = |words: &[&str]| host::run(Command::new("ip").args(words));
    let [lab, port] = LINK;
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "add", lab, "type", "veth", "peer", "name", port])?;
    ADDRESSES.iter().try_for_each(|address| ip(&["address", "add", address, "dev", lab]))?;
    LINK.iter().try_for_each(|end| ip(&["link", "set", end, "up"]))
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PAUSE)
}

/// Whether somebody serves this, whatever is said.
fn answers(port: u16, path: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = connect(port)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(20).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let code = ask().ok().and_then(|answer| answer.split(' ').nth(1)?.parse::<u16>().ok());
    code.is_some_and(|code| code < 500)
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
