"""Has a server created in each zone, with a port at a fixed address, a volume and a config drive, and deletes all of it."""

import base64

import openstack

cloud = openstack.connect(cloud="quorate")
network, compute = cloud.network, cloud.compute
lab = network.find_network("lab")
subnet = network.find_subnet("lab")
ZONES = [("fake", "record", "10.80.0.11"), ("real", "machine", "10.80.0.12")]

for zone, kind, address in ZONES:
    port = network.create_port(network_id=lab.id, fixed_ips=[{"subnet_id": subnet.id, "ip_address": address}])
    volume = cloud.create_volume(1, wait=True)
    server = compute.create_server(
        name=f"boot-{zone}",
        image_id=cloud.image.find_image(kind).id,
        flavor_id=compute.find_flavor(kind).id,
        networks=[{"port": port.id}],
        availability_zone=zone,
        config_drive=True,
        user_data=base64.b64encode(b"hello").decode(),
    )
    server = compute.wait_for_server(server, wait=300)
    cloud.attach_volume(server, volume, wait=True, timeout=120)
    assert network.get_port(port.id).status == "ACTIVE", f"the port in zone {zone} is not active"
    compute.delete_server(server)
    compute.wait_for_delete(server, wait=120)
    network.delete_port(port)
    cloud.delete_volume(volume.id, wait=True)
    print(f"a server in zone {zone} was created and deleted")
