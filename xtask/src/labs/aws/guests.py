"""Whole systems for instances: Debian with systemd as first process, in a namespace. What configures them is what configures real instances of
such images, and it reads the metadata service: cloud-init itself, Ignition's own binary, or quorate's agent.

TOOLS is a directory with `root`, the system that guests begin as, which also has systemd-nspawn; and `ignition`.
"""

import datetime
import functools
import http.server
import ipaddress
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading

GROUPS = "/sys/fs/cgroup"
CA = "etc/ssl/certs/ca-certificates.crt"
# On Flatcar nothing is enabled that no preset names.
PRESET = "disable *\n"
CLOUD_INIT = """\
datasource_list: [Ec2]
datasource: {Ec2: {strict_id: true, metadata_urls: ["http://169.254.169.254"]}}
network: {config: disabled}
"""
# By this file cloud-init knows an instance of Xen, and asks version 2 of the metadata service. A namespace has none of its own.
HYPERVISOR, INSTEAD = "/sys/hypervisor/uuid", "/etc/lab-hypervisor-uuid"
DATA_SOURCE = "usr/lib/python3/dist-packages/cloudinit/sources/DataSourceEc2.py"
# What an image of `quorate image build --ec2` has, in short. The agent puts its own unit in the place of this one when it boots.
OWN_UNIT = """\
[Unit]
After=network.target systemd-networkd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/quorate/quorate agent boot --ec2
StandardOutput=journal+console
StandardError=inherit
"""
OWN_NETWORK = "[Match]\nType=ether\n\n[Network]\nDHCP=ipv4\n"


def put(root, path, text, mode=0o644):
    place = os.path.join(root, path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as out:
        out.write(text if isinstance(text, bytes) else text.encode())
    os.chmod(place, mode)


def certificate(address, directory):
    """One that signs itself, for the server that has quorate's program."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "quorate's lab")])
    today = datetime.datetime.now(datetime.timezone.utc)
    new = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    new = new.serial_number(x509.random_serial_number())
    new = new.not_valid_before(today - datetime.timedelta(days=1)).not_valid_after(today + datetime.timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    new = new.add_extension(names, False).add_extension(x509.BasicConstraints(True, None), True).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    put(directory, "server.pem", private + new.public_bytes(pem), 0o600)
    return new.public_bytes(pem)


class Guests(dict):
    """By the names of images."""

    def __init__(self, directory, quorate, tools, gateway):
        self.directory, self.quorate = os.path.join(directory, "guests"), quorate
        self.base, self.ignition = os.path.join(tools, "root"), os.path.join(tools, "ignition")
        os.makedirs(self.directory)
        # Ignition writes into a home as its user, who must reach it.
        os.chmod(os.path.dirname(directory), 0o755)
        self.ca = certificate(gateway, self.directory)
        self.serve(gateway)
        self.chroot = self.with_nspawn()
        self.leases = self.dhcp(gateway)
        super().__init__({f"lab-{kind.name}": kind(self) for kind in (CloudInit, Ignition, Own)})

    def serve(self, address):
        """quorate's program, at an https address as in a spec."""
        place = os.path.join(self.directory, "www")
        os.makedirs(place)
        os.symlink(self.quorate, os.path.join(place, "quorate"))

        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer((address, 443), functools.partial(Quiet, directory=place))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.join(self.directory, "server.pem"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def with_nspawn(self):
        """The base system has it; this host need not."""
        place = os.path.join(self.directory, "chroot")
        os.makedirs(place)
        mount = lambda *words: subprocess.run(["mount", *words], check=True)
        mount("--bind", self.base, place)
        mount("-t", "proc", "proc", f"{place}/proc")
        mount("--rbind", "/sys", f"{place}/sys")
        mount("--rbind", "/dev", f"{place}/dev")
        mount("-t", "tmpfs", "tmpfs", f"{place}/run")
        put(self.directory, "machine-id", os.urandom(16).hex())
        mount("--bind", f"{self.directory}/machine-id", f"{place}/etc/machine-id")
        os.makedirs(f"{place}/run/netns")
        mount("--rbind", "/run/netns", f"{place}/run/netns")
        return place

    def dhcp(self, gateway):
        leases = os.path.join(self.directory, "leases.d")
        os.makedirs(leases)
        words = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--interface=ec2", "--bind-interfaces"]
        words += [f"--dhcp-range={gateway},static,255.255.0.0", "--dhcp-authoritative", "--user=root", "--leasefile-ro"]
        words += [f"--dhcp-hostsdir={leases}", f"--pid-file={self.directory}/dnsmasq.pid"]
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return leases


class Guest:
    with_address = True
    machine_id = ""

    def __init__(self, guests):
        self.guests, self.processes = guests, {}

    def is_ready(self, instance):
        return True

    def begin(self, instance):
        name = instance["InstanceId"]
        place = os.path.join(self.guests.directory, name)
        root = os.path.join(place, "root")
        is_new = not os.path.exists(place)
        for part in ("upper", "work", "root"):
            os.makedirs(os.path.join(place, part), exist_ok=True)
        layers = f"lowerdir={self.guests.base},upperdir={place}/upper,workdir={place}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
        self.log = open(os.path.join(place, "console.log"), "ab")
        if is_new:
            with open(os.path.join(self.guests.base, CA), "rb") as known:
                put(root, CA, known.read() + self.guests.ca)
            put(root, "etc/machine-id", self.machine_id)
            # There is no DNS.
            put(root, "etc/resolv.conf", "nameserver 127.0.0.1\n")
            self.prepare(instance, root)
        self.boot(name, root)

    def boot(self, name, root):
        inside = f"/run/guests/{name}"
        os.makedirs(self.guests.chroot + inside, exist_ok=True)
        subprocess.run(["mount", "--bind", root, self.guests.chroot + inside], check=True)
        join = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups(name, make=True))
        spawn = "systemd-nspawn --quiet --boot --register=no --keep-unit --console=pipe --capability=all --resolv-conf=off"
        spawn += f" --network-namespace-path=/run/netns/{name} --machine={name} {self.options()} -D {inside}"
        script = f"{{ {join}; }} 2>/dev/null; exec chroot {self.guests.chroot} {spawn}"
        process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.processes[name] = process

    def options(self):
        return ""

    def end(self, name):
        process = self.processes.pop(name)
        # The first process of a namespace takes all others with it.
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            pids = [int(pid) for pid in children.read().split()]
        for pid in [*pids, process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
        subprocess.run(["umount", "--lazy", f"{self.guests.chroot}/run/guests/{name}"])
        subprocess.run(["umount", "--lazy", os.path.join(self.guests.directory, name, "root")])
        for group in groups(name, make=False):
            subprocess.run(f"find {group} -depth -type d -exec rmdir {{}} ';' 2>/dev/null", shell=True)


class CloudInit(Guest):
    name = "cloud-init"

    def prepare(self, instance, root):
        put(root, "etc/cloud/cloud.cfg.d/99-lab.cfg", CLOUD_INIT)
        put(root, INSTEAD.lstrip("/"), "ec2e1916-9099-7caf-fd21-012345abcdef\n")
        with open(os.path.join(root, DATA_SOURCE)) as program:
            text = program.read()
        assert HYPERVISOR in text
        put(root, DATA_SOURCE, text.replace(HYPERVISOR, INSTEAD))


class Ignition(Guest):
    name = "ignition"
    # A first boot, in which systemd enables what presets say.
    machine_id = "uninitialized\n"

    def options(self):
        # Flatcar's is read-only.
        return "--bind-ro=+/usr:/usr"

    def prepare(self, instance, root):
        put(root, "etc/cloud/cloud-init.disabled", "")
        put(root, "usr/lib/systemd/system-preset/99-lab.preset", PRESET)
        # Debian has no such group, Flatcar and Fedora CoreOS do.
        subprocess.run(["groupadd", "--root", root, "--system", "wheel"], check=True)
        with tempfile.TemporaryDirectory() as state:
            words = [self.guests.ignition, "--platform=aws", f"--root={root}", "--log-to-stdout"]
            words += [f"--config-cache={state}/config", f"--state-file={state}/state", f"--neednet={state}/neednet"]
            environment = {**os.environ, "SSL_CERT_FILE": os.path.join(root, CA)}
            for stage in ("fetch-offline", "fetch", "files"):
                stage = ["ip", "netns", "exec", instance["InstanceId"], *words, f"--stage={stage}"]
                subprocess.run(stage, check=True, stdout=self.log, stderr=self.log, env=environment)


class Own(Guest):
    name = "quorate"
    with_address = False

    def prepare(self, instance, root):
        interface = instance["NetworkInterfaces"][0]
        put(self.guests.leases, instance["InstanceId"], f"{interface['MacAddress']},{instance['PrivateIpAddress']}\n")
        put(root, "etc/cloud/cloud-init.disabled", "")
        put(root, "etc/systemd/system/quorate-boot.service", OWN_UNIT)
        put(root, "etc/systemd/network/90-quorate-ec2.network", OWN_NETWORK)
        wants = os.path.join(root, "etc/systemd/system/multi-user.target.wants")
        for unit in ("/etc/systemd/system/quorate-boot.service", "/usr/lib/systemd/system/systemd-networkd.service"):
            os.symlink(unit, os.path.join(wants, os.path.basename(unit)))
        os.makedirs(os.path.join(root, "usr/lib/quorate"))
        shutil.copy(self.guests.quorate, os.path.join(root, "usr/lib/quorate/quorate"))


def groups(name, make):
    """Its control groups: that of each hierarchy where it can have one."""
    found = [GROUPS] + [os.path.join(GROUPS, entry) for entry in os.listdir(GROUPS)]
    for hierarchy in found:
        if not os.path.exists(os.path.join(hierarchy, "cgroup.procs")):
            continue
        group = os.path.join(hierarchy, f"quorate-ec2-{name}")
        if make:
            os.makedirs(group, exist_ok=True)
        if os.path.isdir(group):
            yield group
