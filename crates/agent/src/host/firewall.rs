//! The rules of nftables: a separate table, replaced atomically. Other connections are rejected, not dropped, so that clients
//! do not wait for a timeout.

use quorate_core::model::Opening;

const MARK: &str = "# Written by quorate; changes are lost.\n";
/// A table that is not there cannot be deleted: it is made first.
const BEGIN: &str = "table inet quorate\ndelete table inet quorate\n";

pub(super) fn is_ours(text: &str) -> bool {
    text.contains(MARK)
}

/// No rules of ours.
pub(super) fn none() -> String {
    format!("#!/usr/sbin/nft -f\n{MARK}{BEGIN}")
}

pub(super) fn render(openings: &[Opening]) -> String {
    let rules: String = openings.iter().flat_map(lines).collect();
    format!(
        "#!/usr/sbin/nft -f\n\
         {MARK}\
         {BEGIN}\
         table inet quorate {{\n\
         \x20 chain input {{\n\
         \x20   type filter hook input priority filter; policy drop;\n\
         \x20   ct state established,related accept\n\
         \x20   ct state invalid drop\n\
         \x20   iif lo accept\n\
         \x20   icmp type {{ echo-request, destination-unreachable, time-exceeded, parameter-problem }} accept\n\
         \x20   meta l4proto ipv6-icmp accept\n\
         {rules}\
         \x20   meta l4proto tcp reject with tcp reset\n\
         \x20   reject\n\
         \x20 }}\n\
         }}\n"
    )
}

fn lines(opening: &Opening) -> Vec<String> {
    let ports = match &opening.ports[..] {
        [one] => one.to_string(),
        several => format!("{{ {} }}", several.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")),
    };
    let accept = |from: String| format!("    {from}tcp dport {ports} accept\n");
    let Some(ranges) = &opening.from else { return vec![accept(String::new())] };
    [("ip", true), ("ip6", false)]
        .into_iter()
        .filter_map(|(family, is_v4)| {
            let of_family: Vec<String> =
                ranges.iter().filter(|range| range.address.is_ipv4() == is_v4).map(ToString::to_string).collect();
            (!of_family.is_empty()).then(|| accept(format!("{family} saddr {{ {} }} ", of_family.join(", "))))
        })
        .collect()
}

#[cfg(test)]
mod tests;
