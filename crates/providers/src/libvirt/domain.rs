//! A machine as libvirt knows it: a domain. Its metadata is quorate's mark, which names everything that belongs to it, so
//! existing resources can be found.

use std::net::IpAddr;
use std::path::PathBuf;

use quorate_agent::api::boot::CHANNEL_PORT;
use quorate_core::model::{Build, MemberName};
use quorate_core::providers::libvirt::Attachment;
use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};

/// The name space of the mark, and the prefix that stands for it.
pub(super) const MARK_URI: &str = "urn:quorate:machine:1";
pub(super) const MARK_KEY: &str = "quorate";
const MARK_ELEMENT: &str = "machine";

/// The serials by which a machine distinguishes its disks.
pub(super) const DATA_SERIAL: &str = "quorate-data";
const ROOT_SERIAL: &str = "quorate-root";
const SEED_SERIAL: &str = "quorate-seed";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) cluster: String,
    pub(super) cluster_id: String,
    pub(super) member: MemberName,
    pub(super) incarnation: u64,
    pub(super) address: IpAddr,
    /// Of the controller that makes it.
    pub(super) fence: u64,
    pub(super) state: State,
    /// Resources of this machine alone, which are deleted with it.
    pub(super) volumes: Vec<Volume>,
    /// Resources of its member, which may stay.
    pub(super) data: Option<Volume>,
    /// What it was made of.
    #[serde(default)]
    pub(super) build: Option<Build>,
    /// Where its console is written to.
    pub(super) console: PathBuf,
    /// Whether its agent is reached only over the serial port.
    pub(super) line_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Its disks are being created. It does not count as a machine yet.
    Draft,
    Whole,
    /// Its disks are being removed.
    Going,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Volume {
    pub(super) pool: String,
    pub(super) name: String,
}

impl Mark {
    /// As `virsh metadata` takes it.
    pub(super) fn element(&self) -> String {
        let mark = serde_json::to_string(self).expect("plain data serializes");
        format!("<{MARK_ELEMENT}>{}</{MARK_ELEMENT}>", escaped(&mark))
    }

    /// The mark in a domain's description.
    fn metadata(&self) -> String {
        let mark = serde_json::to_string(self).expect("plain data serializes");
        let name = format!("{MARK_KEY}:{MARK_ELEMENT}");
        format!("<metadata><{name} xmlns:{MARK_KEY}='{MARK_URI}'>{}</{name}></metadata>", escaped(&mark))
    }

    fn read(domain: Node<'_, '_>) -> Option<Self> {
        let marked = |node: &Node<'_, '_>| node.has_tag_name((MARK_URI, MARK_ELEMENT));
        let element = child(domain, "metadata")?.children().find(marked)?;
        serde_json::from_str(element.text()?).ok()
    }
}

/// A domain as it was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) on: bool,
    pub(super) macs: Vec<String>,
    pub(super) mark: Option<Mark>,
    /// The host's end of the serial port that the agent answers on, while it is on.
    pub(super) line: Option<PathBuf>,
}

impl Found {
    pub(super) fn read(description: &str) -> Option<Self> {
        let document = Document::parse(description).ok()?;
        let domain = document.root_element();
        let text = |tag: &str| Some(child(domain, tag)?.text()?.to_owned());
        let devices = |tag: &'static str| {
            let of_its_own = child(domain, "devices").into_iter().flat_map(|devices| devices.children());
            of_its_own.filter(move |device| device.has_tag_name(tag))
        };
        let macs = devices("interface").filter_map(|interface| attribute(child(interface, "mac")?, "address"));
        let is_ours = |channel: &Node<'_, '_>| {
            child(*channel, "target").is_some_and(|target| target.attribute("name") == Some(CHANNEL_PORT))
        };
        let line = devices("channel").find(is_ours).and_then(|channel| attribute(child(channel, "source")?, "path"));
        Some(Found {
            name: text("name")?,
            uuid: text("uuid")?,
            on: domain.has_attribute("id"),
            macs: macs.collect(),
            mark: Mark::read(domain),
            line: line.map(PathBuf::from),
        })
    }
}

/// The first element of this name directly below another.
pub(super) fn child<'a, 'input>(parent: Node<'a, 'input>, tag: &str) -> Option<Node<'a, 'input>> {
    parent.children().find(|node| node.has_tag_name(tag))
}

pub(super) fn attribute(element: Node<'_, '_>, name: &str) -> Option<String> {
    element.attribute(name).map(str::to_owned)
}

/// The description of a new machine.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) uuid: &'a str,
    pub(super) mark: &'a Mark,
    pub(super) kvm: bool,
    pub(super) vcpus: u32,
    pub(super) memory: u64,
    pub(super) root: Disk,
    pub(super) data: Option<Disk>,
    pub(super) seed: Volume,
    pub(super) interfaces: Vec<(Attachment, String)>,
}

pub(super) struct Disk {
    pub(super) volume: Volume,
    pub(super) format: String,
}

impl Wanted<'_> {
    pub(super) fn description(&self) -> String {
        let Wanted { name, uuid, mark, kvm, vcpus, memory, .. } = self;
        let (kind, cpu) = match kvm {
            true => ("kvm", "<cpu mode='host-passthrough'/>"),
            false => ("qemu", "<cpu mode='custom' match='exact'><model>qemu64</model></cpu>"),
        };
        let mut disks = disk(&self.root.volume, &self.root.format, "vda", ROOT_SERIAL, false);
        if let Some(data) = &self.data {
            disks += &disk(&data.volume, &data.format, "vdb", DATA_SERIAL, false);
        }
        disks += &disk(&self.seed, "raw", "vdc", SEED_SERIAL, true);
        let interfaces: String = self.interfaces.iter().map(|(to, mac)| interface(to, mac)).collect();
        format!(
            "<domain type='{kind}'>\
             <name>{}</name><uuid>{uuid}</uuid>{}\
             <memory unit='b'>{memory}</memory><vcpu>{vcpus}</vcpu>{cpu}\
             <os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/></os>\
             <features><acpi/><apic/></features><clock offset='utc'/>\
             <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>restart</on_crash>\
             <devices>{disks}{interfaces}\
             <serial type='pty'><log file='{}' append='off'/><target port='0'/></serial>\
             <console type='pty'><target type='serial' port='0'/></console>\
             <channel type='unix'><source mode='bind'/><target type='virtio' name='{CHANNEL_PORT}'/></channel>\
             <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>\
             <memballoon model='none'/>\
             </devices></domain>",
            escaped(name),
            mark.metadata(),
            escaped(&mark.console.to_string_lossy()),
        )
    }
}

fn disk(volume: &Volume, format: &str, target: &str, serial: &str, read_only: bool) -> String {
    let read_only = if read_only { "<readonly/>" } else { "" };
    format!(
        "<disk type='volume' device='disk'><driver name='qemu' type='{}'/>\
         <source pool='{}' volume='{}'/><target dev='{target}' bus='virtio'/>{read_only}<serial>{serial}</serial></disk>",
        escaped(format),
        escaped(&volume.pool),
        escaped(&volume.name),
    )
}

fn interface(to: &Attachment, mac: &str) -> String {
    let (kind, source) = match to {
        Attachment::Network(name) => ("network", format!("network='{}'", escaped(name))),
        Attachment::NetworkId(id) => ("network", format!("network='{id}'")),
        Attachment::Macvtap(device) => ("direct", format!("dev='{}' mode='bridge'", escaped(device))),
    };
    format!("<interface type='{kind}'><mac address='{mac}'/><source {source}/><model type='virtio'/></interface>")
}

const ESCAPES: [(&str, &str); 5] = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("'", "&apos;")];

/// A text as it stands in XML, in an attribute too.
pub(super) fn escaped(text: &str) -> String {
    ESCAPES.iter().fold(text.to_owned(), |text, (plain, escape)| text.replace(plain, escape))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        Mark {
            cluster: String::from("demo"),
            cluster_id: String::from("abc"),
            member: "etcd-1".into(),
            incarnation: 2,
            address: "192.168.122.11".parse().unwrap(),
            fence: 3,
            state: State::Draft,
            volumes: vec![Volume { pool: String::from("a&b"), name: String::from("<'\">&amp;") }],
            data: None,
            build: None,
            console: PathBuf::from("/var/log/it's"),
            line_only: false,
        }
    }

    #[test]
    fn a_domain_reads_back_with_its_mark() {
        let mark = mark();
        let wanted = Wanted {
            name: "quorate-demo-etcd-1",
            uuid: "6e1e2b0c-1f5d-4a57-9c1e-0a4f6a1d2b3c",
            mark: &mark,
            kvm: false,
            vcpus: 2,
            memory: 1 << 30,
            root: Disk { volume: mark.volumes[0].clone(), format: String::from("qcow2") },
            data: None,
            seed: mark.volumes[0].clone(),
            interfaces: vec![(Attachment::Macvtap(String::from("ens3")), String::from("52:54:00:00:00:01"))],
        };
        let found = Found::read(&wanted.description()).unwrap();
        assert_eq!((found.name.as_str(), found.uuid.as_str(), found.on), (wanted.name, wanted.uuid, false));
        assert_eq!(found.mark, Some(mark));
        assert_eq!((found.macs, found.line), (vec![String::from("52:54:00:00:00:01")], None));
    }

    #[test]
    fn a_running_domain_shows_its_serial_line() {
        let description = "<domain type='qemu' id='7'>\n  <name>a</name>\n  <uuid>u</uuid>\n<devices><channel type='unix'>\
            <source mode='bind' path='/run/x'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>\n\
            <channel type='unix'><source mode='bind' path='/run/y'/><target type='virtio' name='io.quorate.agent'/></channel>\
            </devices></domain>";
        let found = Found::read(description).unwrap();
        assert!(found.on && found.mark.is_none());
        assert_eq!(found.line, Some(PathBuf::from("/run/y")));
    }

    #[test]
    fn metadata_of_other_tools_in_a_domain_is_not_mistaken_for_a_mark() {
        let description = "<!-- <domain id='7'> --><domain type='kvm'><metadata><a:b xmlns:a='urn:quorate:machine:2'>{}</a:b>\
            <note>&lt;mac address='52:54:00:00:00:01'/></note></metadata>\
            <name>a &amp; b</name><uuid>u</uuid><title><![CDATA[<name>other</name>]]></title></domain>";
        let found = Found::read(description).unwrap();
        assert_eq!((found.name.as_str(), found.on, found.macs.len()), ("a & b", false, 0));
        assert!(found.mark.is_none() && Found::read("<domain><name>a</name>").is_none());
    }

    /// Descriptions of domains that others have made.
    #[test]
    fn fuzz_descriptions() {
        let description = format!(
            "<domain type='kvm' id='1'><name>quorate-demo</name><uuid>1-2</uuid>{}<devices><interface><mac address='52:54:00:00:00:01'/>\
             </interface><channel type='unix'><source mode='bind' path='/a'/><target type='virtio' name='{CHANNEL_PORT}'/></channel>\
             </devices></domain>",
            mark().metadata()
        );
        assert!(Found::read(&description).unwrap().mark.is_some(), "the sample is good");
        let foreign = String::from(
            "<domain><name>é</name><uuid>1</uuid><devices><interface><mac address='é'/></interface></devices></domain>",
        );
        quorate_fuzz::campaign(&[description.into_bytes(), foreign.into_bytes()], |input| {
            if let Some(found) = Found::read(&String::from_utf8_lossy(input)) {
                let _ = found.mark.map(|mark| mark.element());
            }
        });
    }
}
