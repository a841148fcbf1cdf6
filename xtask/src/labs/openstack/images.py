"""Waits for what no service says by itself, and uploads images: for each argument NAME=FORMAT=FILE."""

import sys
import time

import openstack

cloud = openstack.connect(cloud="admin")
# Until it has read some other table, neutron 21 fails to list ports ("Port has no attribute port_forwardings").
list(cloud.network.networks())
for argument in sys.argv[1:]:
    name, disk_format, file = argument.split("=", 2)
    cloud.create_image(
        name, filename=file, disk_format=disk_format, container_format="bare", visibility="public", wait=True
    )
# Until its scheduler has heard of a place for volumes, cinder makes none.
end = time.monotonic() + 120
while not list(cloud.block_storage.backend_pools()):
    if time.monotonic() > end:
        sys.exit("cinder knows no place for volumes")
    time.sleep(0.5)
