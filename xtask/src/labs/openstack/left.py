"""Prints what the lab's users still have in their projects, one line each."""

import openstack

# Of the lab.
OURS = ("default", "machines", "lab", "second")

for user in ("quorate", "other"):
    cloud = openstack.connect(cloud=user)
    project = cloud.current_project_id
    found = {
        "server": cloud.compute.servers(),
        "server group": cloud.compute.server_groups(),
        "volume": cloud.block_storage.volumes(),
        "snapshot": cloud.block_storage.snapshots(),
        "port": cloud.network.ports(project_id=project),
        "floating address": cloud.network.ips(project_id=project),
        "network": cloud.network.networks(project_id=project),
        "image": cloud.image.images(owner=project),
        "security group": cloud.network.security_groups(project_id=project),
    }
    for kind, objects in found.items():
        for one in objects:
            if one.name not in OURS:
                print(f"{user}: {kind} {one.name or one.id}")
