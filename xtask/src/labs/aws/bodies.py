"""Bodies for instances that are records.

`bodies.py run ENDPOINT DIRECTORY QUORATE ETCD [TOOLS]` gives each running instance a network namespace with the address of its interface, next
to a metadata service, and in it an agent with a root directory that its user data has configured as cloud-init would. Its data volume is a
directory. Instances of images that `guests.py` knows get a whole system instead, if TOOLS are there. When the instance stops, its processes end.
`bodies.py ask ENDPOINT OPERATION ARGUMENTS` prints what EC2 answers, as JSON; `SERVICE.OPERATION` asks another service.

For benches: with QUORATE_LAB_AWS_EVENTS in its environment, `run` writes what happens to instances to this file. `bodies.py seeds ENDPOINT`
prints with what the running instances were created, and `bodies.py again ENDPOINT EVENTS SEEDS` creates such instances, waits until their
agents listen, terminates them and prints how long it took: instances without quorate's controller.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time

import boto3

MARK = "QUORATE_LAB_BODY"
# The story's VPC, and an address in it that AWS keeps for itself.
GATEWAY = "10.80.0.1"
PREFIX = 16
# Where agents listen, as the kernel shows it, and the state of a socket that listens.
AGENT, LISTENS = f":{2390:04X}", "0A"
# How long, in seconds, an instance may take to begin or to end.
PATIENCE = 300


def client(endpoint, service="ec2"):
    keys = {"aws_access_key_id": "lab", "aws_secret_access_key": "lab"}
    return boto3.client(service, endpoint_url=endpoint, region_name="eu-west-2", **keys)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def below(root, path):
    place = os.path.join(root, path.lstrip("/"))
    os.makedirs(os.path.dirname(place), exist_ok=True)
    return place


class Network:
    """A bridge that all instances are on. The metadata service is next to each of them."""

    def __init__(self):
        os.makedirs("/run/netns", exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
        subprocess.run(["mount", "--make-shared", "/run/netns"], check=True)
        ip("link", "add", "ec2", "type", "bridge")
        ip("address", "add", f"{GATEWAY}/{PREFIX}", "dev", "ec2")
        ip("address", "add", "169.254.169.254/32", "dev", "ec2")
        ip("link", "set", "ec2", "up")

    def add(self, instance, with_address=True):
        name, interface = instance["InstanceId"], instance["NetworkInterfaces"][0]
        outside = f"v{name[-12:]}"
        ip("netns", "add", name)
        ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", outside, "master", "ec2", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "eth0", "address", interface["MacAddress"], "up")
        if with_address:
            ip("-n", name, "address", "add", f"{instance['PrivateIpAddress']}/{PREFIX}", "dev", "eth0")
            ip("-n", name, "route", "add", "default", "via", GATEWAY)

    def remove(self, name):
        ip("link", "delete", f"v{name[-12:]}")
        ip("netns", "delete", name)


def is_open(table):
    """Whether an agent listens, as a process in its network sees it. Nothing connects to it: that would be part of what is measured."""
    try:
        with open(table) as sockets:
            lines = [line.split() for line in sockets]
    except OSError:
        return False
    return any(line[1].endswith(AGENT) and line[3] == LISTENS for line in lines)


class Events:
    """What happened to instances: a line each, with the time."""

    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()

    def note(self, name, what):
        if self.path:
            with self.lock, open(self.path, "a") as out:
                out.write(f"{time.time():.4f} {name} {what}\n")

    def watch(self, name):
        """Notes when its agent listens."""
        if self.path:
            threading.Thread(target=self.until_it_listens, args=(name,), daemon=True).start()

    def until_it_listens(self, name):
        inside = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "600"], stdin=subprocess.DEVNULL)
        while inside.poll() is None:
            if any(is_open(f"/proc/{inside.pid}/net/{table}") for table in ("tcp", "tcp6")):
                self.note(name, "listens")
                inside.kill()
                inside.wait()
                return
            time.sleep(0.01)

    def read(self):
        """When, by instance and what."""
        with open(self.path) as lines:
            return {(name, what): float(when) for when, name, what in map(str.split, lines)}

    def wait(self, names, what):
        """Returns the last time of all."""
        begun, found = time.time(), {}
        while not all((name, what) in found for name in names):
            assert time.time() - begun < PATIENCE, f"not all of {names} have {what}: {found}"
            time.sleep(0.02)
            found = self.read()
        return max(found[name, what] for name in names)


def seeds(endpoint):
    """With what the running instances were created."""
    ec2, found = client(endpoint), []
    running = [{"Name": "instance-state-name", "Values": ["running"]}]
    for reservation in ec2.describe_instances(Filters=running)["Reservations"]:
        for one in reservation["Instances"]:
            asked = ec2.describe_instance_attribute(InstanceId=one["InstanceId"], Attribute="userData")
            interface = one["NetworkInterfaces"][0]
            seed = {"image": one["ImageId"], "type": one["InstanceType"], "subnet": interface["SubnetId"]}
            found.append(seed | {"address": one["PrivateIpAddress"], "user_data": asked["UserData"]["Value"]})
    return found


def again(endpoint, events, path):
    ec2, events = client(endpoint), Events(events)
    with open(path) as file:
        wanted = json.load(file)
    made = [ec2.create_network_interface(SubnetId=one["subnet"], PrivateIpAddress=one["address"]) for one in wanted]
    interfaces, names = [one["NetworkInterface"]["NetworkInterfaceId"] for one in made], []
    begun = time.time()
    for one, interface in zip(wanted, interfaces):
        call = {"ImageId": one["image"], "InstanceType": one["type"], "MinCount": 1, "MaxCount": 1}
        call["NetworkInterfaces"] = [{"DeviceIndex": 0, "NetworkInterfaceId": interface}]
        # The client encodes it once more.
        call["UserData"] = base64.b64decode(one["user_data"]).decode()
        names.append(ec2.run_instances(**call)["Instances"][0]["InstanceId"])
    ended = events.wait(names, "listens")
    ec2.terminate_instances(InstanceIds=names)
    events.wait(names, "ended")
    for interface in interfaces:
        ec2.delete_network_interface(NetworkInterfaceId=interface)
    return {"seconds": ended - begun}


def volume_of(ec2, instance):
    for device in instance["BlockDeviceMappings"]:
        volume = ec2.describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"][0]
        if {"Key": "quorate.role", "Value": "data"} in volume.get("Tags", []):
            return volume["VolumeId"]
    return None


class Process:
    """A body that is an agent alone."""

    with_address = True

    def __init__(self, ec2, directory, quorate, etcd):
        self.ec2, self.directory, self.quorate, self.etcd = ec2, directory, quorate, etcd

    def is_ready(self, instance):
        """A volume is attached after the instance was made."""
        config = self.config(instance)
        return "data_disk" not in config or volume_of(self.ec2, instance) is not None

    def config(self, instance):
        asked = self.ec2.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
        text = base64.b64decode(asked["UserData"]["Value"]).decode()
        self.files = json.loads(text.removeprefix("#cloud-config\n"))["write_files"]
        return json.loads(base64.b64decode(self.files[1]["content"]))

    def begin(self, instance):
        name = instance["InstanceId"]
        root = os.path.join(self.directory, name)
        machine = self.config(instance)
        if "data_disk" in machine:
            self.attach(root, machine, volume_of(self.ec2, instance))
        for file in self.files:
            place = below(root, file["path"])
            with open(place, "wb") as out:
                out.write(base64.b64decode(file["content"]))
            os.chmod(place, int(file["permissions"], 8))
        log = open(below(root, "/var/log/console.log"), "ab")
        boot = [self.quorate, "agent", "boot", "--root", root, "--beside-cloud-init"]
        subprocess.run(boot, check=True, stdout=log, stderr=log)
        environment = {"PATH": f"{self.etcd}:{os.environ['PATH']}", MARK: name}
        seed = os.path.join(root, "run/quorate/seed.json")
        agent = ["ip", "netns", "exec", name, self.quorate, "agent", "--root", root, "--seed", seed]
        subprocess.Popen(agent, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True)

    def attach(self, root, machine, volume):
        assert machine["data_disk"]["serial"] == volume.replace("-", ""), machine
        kept = os.path.join(self.directory, "volumes", volume)
        os.makedirs(kept, exist_ok=True)
        link = below(root, "/var/lib/etcd.disk")
        if not os.path.islink(link):
            os.symlink(kept, link)

    def end(self, name):
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/environ", "rb") as file:
                    if f"{MARK}={name}".encode() in file.read().split(b"\0"):
                        os.kill(int(process), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                pass


def run(endpoint, directory, quorate, etcd, tools=None):
    import guests
    import metadata

    ec2, network, running = client(endpoint), Network(), {}
    events = Events(os.environ.get("QUORATE_LAB_AWS_EVENTS"))
    os.makedirs(directory, exist_ok=True)
    metadata.serve(client(endpoint), running)
    plain = Process(ec2, directory, quorate, etcd)
    whole = guests.Guests(directory, quorate, tools, GATEWAY) if tools else {}
    bodies, kinds = {}, {}

    def kind(image):
        if image not in kinds:
            found = ec2.describe_images(ImageIds=[image])["Images"]
            kinds[image] = found[0]["Name"] if found else None
        return whole.get(kinds[image]) or plain

    while True:
        found = ec2.describe_instances()["Reservations"]
        found = {one["InstanceId"]: one for reservation in found for one in reservation["Instances"]}
        now = {name: one for name, one in found.items() if one["State"]["Name"] == "running"}
        for name in set(bodies) - set(now):
            bodies.pop(name).end(name)
            running.pop(name)
            network.remove(name)
            events.note(name, "ended")
        for name, instance in now.items():
            body = bodies.get(name) or kind(instance["ImageId"])
            if name not in bodies and body.is_ready(instance):
                running[name] = instance
                events.note(name, "begins")
                network.add(instance, body.with_address)
                events.watch(name)
                body.begin(instance)
                bodies[name] = body
        time.sleep(0.3)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(*sys.argv[2:])
    elif sys.argv[1] == "ask":
        _, _, endpoint, operation, arguments = sys.argv
        service, _, operation = operation.rpartition(".")
        answer = getattr(client(endpoint, service or "ec2"), operation)(**json.loads(arguments))
        print(json.dumps(answer, default=str))
    else:
        print(json.dumps({"seeds": seeds, "again": again}[sys.argv[1]](*sys.argv[2:])))
