"""The catalogue and the users, as an operator sets them up once."""

import openstack

SERVICES = [
    ("nova", "compute", "http://127.0.0.1:8774/v2.1"),
    ("glance", "image", "http://127.0.0.1:9292"),
    ("placement", "placement", "http://127.0.0.1:8778"),
    ("neutron", "network", "http://127.0.0.1:9696"),
    ("cinder", "volumev3", "http://127.0.0.1:8776/v3/%(project_id)s"),
]
# Each has a project of the same name. Everybody's password is `lab`.
USERS = {"service": ["admin", "service"], "quorate": ["member", "reader"], "other": ["member", "reader"]}

# The same cloud, with a compute service that keeps deleted servers for some time.
KEEPING = "Keeping"
KEEPING_COMPUTE = "http://127.0.0.1:8784/v2.1"

identity = openstack.connect(cloud="admin").identity
identity.create_region(id=KEEPING)
for name, kind, url in SERVICES:
    service = identity.create_service(name=name, type=kind)
    for region, url in (("RegionOne", url), (KEEPING, KEEPING_COMPUTE if kind == "compute" else url)):
        for interface in ("public", "internal", "admin"):
            identity.create_endpoint(service_id=service.id, interface=interface, url=url, region_id=region)
for name, roles in USERS.items():
    project = identity.create_project(name=name, domain_id="default")
    user = identity.create_user(name=name, password="lab", domain_id="default")
    for role in roles:
        role = identity.find_role(role) or identity.create_role(name=role)
        identity.assign_project_role_to_user(project, user, role)
