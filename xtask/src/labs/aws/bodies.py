"""Bodies for instances that are records.

`bodies.py run ENDPOINT DIRECTORY QUORATE ETCD` gives each running instance an agent: the address of its interface on this host, and a root
directory that its user data has configured as cloud-init would. Its data volume is a directory. When the instance stops, its processes end.
`bodies.py ask ENDPOINT OPERATION ARGUMENTS` prints what EC2 answers, as JSON.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time

import boto3

MARK = "QUORATE_LAB_BODY"


def client(endpoint):
    keys = {"aws_access_key_id": "lab", "aws_secret_access_key": "lab"}
    return boto3.client("ec2", endpoint_url=endpoint, region_name="eu-west-2", **keys)


def below(root, path):
    place = os.path.join(root, path.lstrip("/"))
    os.makedirs(os.path.dirname(place), exist_ok=True)
    return place


def write_files(config, root):
    for file in config["write_files"]:
        place = below(root, file["path"])
        with open(place, "wb") as out:
            out.write(base64.b64decode(file["content"]))
        os.chmod(place, int(file["permissions"], 8))


def volume_of(ec2, instance):
    for device in instance["BlockDeviceMappings"]:
        volume = ec2.describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"][0]
        if {"Key": "quorate.role", "Value": "data"} in volume.get("Tags", []):
            return volume["VolumeId"]
    return None


def begin(ec2, instance, directory, quorate, etcd):
    """Whether it has a body now."""
    name = instance["InstanceId"]
    root = os.path.join(directory, name)
    asked = ec2.describe_instance_attribute(InstanceId=name, Attribute="userData")
    text = base64.b64decode(asked["UserData"]["Value"]).decode()
    config = json.loads(text.removeprefix("#cloud-config\n"))
    machine = json.loads(base64.b64decode(config["write_files"][1]["content"]))
    if "data_disk" in machine:
        volume = volume_of(ec2, instance)
        if volume is None:
            return False
        assert machine["data_disk"]["serial"] == volume.replace("-", ""), machine
        kept = os.path.join(directory, "volumes", volume)
        os.makedirs(kept, exist_ok=True)
        link = below(root, "/var/lib/etcd.disk")
        if not os.path.islink(link):
            os.symlink(kept, link)
    write_files(config, root)
    log = open(below(root, "/var/log/console.log"), "ab")
    boot = [quorate, "agent", "boot", "--root", root, "--beside-cloud-init"]
    subprocess.run(boot, check=True, stdout=log, stderr=log)
    address = instance["PrivateIpAddress"]
    subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)
    # On one host a peer would come from the address that it connects to, and etcd compares that with the peer's certificate.
    local = ["ip", "route", "replace", "local", f"{address}/32", "dev", "lo", "table", "local", "scope", "host", "src", "127.0.0.1"]
    subprocess.run(local, check=True)
    environment = {"PATH": f"{etcd}:{os.environ['PATH']}", MARK: name}
    seed = os.path.join(root, "run/quorate/seed.json")
    agent = [quorate, "agent", "--root", root, "--seed", seed]
    subprocess.Popen(agent, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True)
    return True


def end(name):
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                if f"{MARK}={name}".encode() in file.read().split(b"\0"):
                    os.kill(int(process), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass


def run(endpoint, directory, quorate, etcd):
    ec2 = client(endpoint)
    bodies = {}
    while True:
        found = ec2.describe_instances()["Reservations"]
        found = {one["InstanceId"]: one for reservation in found for one in reservation["Instances"]}
        running = {name: one for name, one in found.items() if one["State"]["Name"] == "running"}
        for name in set(bodies) - set(running):
            end(name)
            subprocess.run(["ip", "address", "delete", f"{bodies.pop(name)}/32", "dev", "lo"])
        for name, instance in running.items():
            if name not in bodies and begin(ec2, instance, directory, quorate, etcd):
                bodies[name] = instance["PrivateIpAddress"]
        time.sleep(0.3)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(*sys.argv[2:])
    else:
        _, _, endpoint, operation, arguments = sys.argv
        answer = getattr(client(endpoint), operation)(**json.loads(arguments))
        print(json.dumps(answer, default=str))
