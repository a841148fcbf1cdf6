//! The answers of `/v2/stats`, `/v2/members` and `/v2/machines`. Pure.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use quorate_etcd::Member;

use crate::json::Json;
use crate::request::{Call, Kind};

/// How often something succeeded, and how often it failed.
#[derive(Debug, Default)]
struct Count {
    success: AtomicU64,
    fail: AtomicU64,
}

/// What this process has answered since it started.
#[derive(Debug, Default)]
pub struct Counts {
    gets: Count,
    sets: Count,
    deletes: Count,
    updates: Count,
    creates: Count,
    swaps: Count,
    compared_deletes: Count,
}

impl Counts {
    pub fn add(&self, call: &Call, succeeded: bool) {
        let count = match call {
            Call::Wait(_) => return,
            Call::Get { .. } => &self.gets,
            Call::Write(write) => match write.kind {
                Kind::Set => &self.sets,
                Kind::Create | Kind::Post => &self.creates,
                Kind::Update => &self.updates,
                Kind::CompareAndSwap(_) => &self.swaps,
                Kind::Delete { .. } => &self.deletes,
                Kind::CompareAndDelete(_) => &self.compared_deletes,
            },
        };
        let count = if succeeded { &count.success } else { &count.fail };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn json(&self, waiters: usize) -> String {
        let mut json = Json::default();
        json.object(|json| {
            for (name, count) in [
                ("gets", &self.gets),
                ("sets", &self.sets),
                ("delete", &self.deletes),
                ("update", &self.updates),
                ("create", &self.creates),
                ("compareAndSwap", &self.swaps),
                ("compareAndDelete", &self.compared_deletes),
            ] {
                json.field(&format!("{name}Success")).number(count.success.load(Ordering::Relaxed));
                json.field(&format!("{name}Fail")).number(count.fail.load(Ordering::Relaxed));
            }
            json.field("expireCount").number(0);
            json.field("watchers").number(waiters as u64);
        });
        json.finish()
    }
}

/// How a member answers probes, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latency {
    current: f64,
    average: f64,
    average_of_squares: f64,
    minimum: f64,
    maximum: f64,
    success: u64,
    fail: u64,
}

impl Latency {
    pub fn add(&mut self, took: Option<Duration>) {
        let Some(took) = took else {
            self.fail += 1;
            return;
        };
        let (current, before) = (took.as_secs_f64() * 1000.0, self.success as f64);
        self.success += 1;
        let mean = |of: f64, with: f64| (of * before + with) / (before + 1.0);
        self.average = mean(self.average, current);
        self.average_of_squares = mean(self.average_of_squares, current * current);
        self.minimum = if before == 0.0 { current } else { self.minimum.min(current) };
        self.maximum = self.maximum.max(current);
        self.current = current;
    }

    fn write(&self, json: &mut Json) {
        let variance = self.average_of_squares - self.average * self.average;
        json.object(|json| {
            json.field("latency").object(|json| {
                json.field("current").float(self.current);
                json.field("average").float(self.average);
                json.field("standardDeviation").float(variance.max(0.0).sqrt());
                json.field("minimum").float(self.minimum);
                json.field("maximum").float(self.maximum);
            });
            json.field("counts").object(|json| {
                json.field("fail").number(self.fail);
                json.field("success").number(self.success);
            });
        });
    }
}

pub fn id(id: u64) -> String {
    format!("{id:x}")
}

/// The followers are the other voters and learners.
pub fn leader_json(leader: u64, members: &[Member], probes: &BTreeMap<u64, Latency>) -> String {
    let mut followers: Vec<&Member> = members.iter().filter(|member| member.id != leader).collect();
    followers.sort_by_key(|member| id(member.id));
    let mut json = Json::default();
    json.object(|json| {
        json.field("leader").text(id(leader).as_bytes());
        json.field("followers").object(|json| {
            for follower in followers {
                let probes = probes.get(&follower.id).cloned().unwrap_or_default();
                probes.write(json.field(&id(follower.id)));
            }
        });
    });
    json.finish()
}

/// One member, as seen from here.
pub struct Own<'a> {
    pub name: &'a str,
    pub id: u64,
    pub leader: u64,
    pub started: Timestamp,
    pub leads_since: Timestamp,
    pub now: Timestamp,
}

pub fn self_json(own: &Own<'_>) -> String {
    let state = if own.id == own.leader { "StateLeader" } else { "StateFollower" };
    let led = Duration::try_from(own.now.duration_since(own.leads_since)).unwrap_or_default();
    let mut json = Json::default();
    json.object(|json| {
        json.field("name").text(own.name.as_bytes());
        json.field("id").text(id(own.id).as_bytes());
        json.field("state").text(state.as_bytes());
        json.field("startTime").text(own.started.to_string().as_bytes());
        json.field("leaderInfo").object(|json| {
            json.field("leader").text(id(own.leader).as_bytes());
            json.field("uptime").text(go_duration(led).as_bytes());
            json.field("startTime").text(own.leads_since.to_string().as_bytes());
        });
        json.field("recvAppendRequestCnt").number(0);
        json.field("sendAppendRequestCnt").number(0);
    });
    json.finish()
}

/// Such as `1h2m3.5s`.
fn go_duration(duration: Duration) -> String {
    let (hours, minutes) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60);
    let seconds = (duration - Duration::from_secs(duration.as_secs() / 60 * 60)).as_secs_f64();
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Where clients reach a member: at the addresses that are advertised instead, if any.
fn client_urls<'a>(member: &'a Member, advertised: &'a [String]) -> &'a [String] {
    if advertised.is_empty() { &member.client_urls } else { advertised }
}

fn write_member(json: &mut Json, member: &Member, advertised: &[String]) {
    json.object(|json| {
        json.field("id").text(id(member.id).as_bytes());
        json.field("name").text(member.name.as_bytes());
        json.field("peerURLs").texts(member.peer_urls.iter().map(String::as_str));
        json.field("clientURLs").texts(client_urls(member, advertised).iter().map(String::as_str));
    });
}

pub fn member_json(member: &Member, advertised: &[String]) -> String {
    let mut json = Json::default();
    write_member(&mut json, member, advertised);
    json.line()
}

pub fn members_json(members: &[Member], advertised: &[String]) -> String {
    let mut members: Vec<&Member> = members.iter().collect();
    members.sort_by_key(|member| member.id);
    let mut json = Json::default();
    json.object(|json| {
        json.field("members").array(|json| members.iter().for_each(|member| write_member(json, member, advertised)));
    });
    json.line()
}

pub fn machines(members: &[Member], advertised: &[String]) -> String {
    let mut urls: Vec<&str> =
        members.iter().flat_map(|member| client_urls(member, advertised)).map(String::as_str).collect();
    urls.sort_unstable();
    urls.dedup();
    urls.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str) -> Member {
        let urls = |port| vec![format!("https://{name}:{port}")];
        Member { id, name: name.into(), peer_urls: urls(2380), client_urls: urls(2379), is_learner: false }
    }

    #[test]
    fn the_leader_knows_its_followers() {
        let members = [member(0x57b0110512623df, "a"), member(0x2c455da15ca7bea1, "b"), member(0x60f9, "c")];
        let mut latency = Latency::default();
        for milliseconds in [1, 3] {
            latency.add(Some(Duration::from_millis(milliseconds)));
        }
        latency.add(None);
        let probes = BTreeMap::from([(0x2c455da15ca7bea1, latency)]);
        assert_eq!(
            leader_json(0x57b0110512623df, &members, &probes),
            concat!(
                r#"{"leader":"57b0110512623df","followers":{"2c455da15ca7bea1":{"latency":{"current":3,"average":2,"#,
                r#""standardDeviation":1,"minimum":1,"maximum":3},"counts":{"fail":1,"success":2}},"#,
                r#""60f9":{"latency":{"current":0,"average":0,"standardDeviation":0,"minimum":0,"maximum":0},"#,
                r#""counts":{"fail":0,"success":0}}}}"#
            )
        );
    }

    #[test]
    fn members_and_machines_look_like_etcds() {
        let members = [member(0xb, "b"), member(0xa, "a")];
        assert_eq!(
            members_json(&members, &[]),
            concat!(
                r#"{"members":[{"id":"a","name":"a","peerURLs":["https://a:2380"],"clientURLs":["https://a:2379"]},"#,
                r#"{"id":"b","name":"b","peerURLs":["https://b:2380"],"clientURLs":["https://b:2379"]}]}"#,
                "\n"
            )
        );
        assert_eq!(machines(&members, &[]), "https://a:2379, https://b:2379");
        assert_eq!(machines(&members, &["https://front".into()]), "https://front");
    }

    #[test]
    fn a_member_says_who_leads_and_for_how_long() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (started, leads_since) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T01:00:00Z"));
        let own = Own { name: "a", id: 10, leader: 11, started, leads_since, now: at("2026-01-01T02:02:03.5Z") };
        assert_eq!(
            self_json(&own),
            concat!(
                r#"{"name":"a","id":"a","state":"StateFollower","startTime":"2026-01-01T00:00:00Z","leaderInfo":"#,
                r#"{"leader":"b","uptime":"1h2m3.5s","startTime":"2026-01-01T01:00:00Z"},"#,
                r#""recvAppendRequestCnt":0,"sendAppendRequestCnt":0}"#
            )
        );
    }

    #[test]
    fn answered_calls_are_counted() {
        let counts = Counts::default();
        let get = Call::Get { path: crate::path::Path::root(), recursive: false };
        counts.add(&get, true);
        counts.add(&get, false);
        let json = counts.json(3);
        assert!(json.starts_with(r#"{"getsSuccess":1,"getsFail":1,"setsSuccess":0,"#), "{json}");
        assert!(json.ends_with(r#""expireCount":0,"watchers":3}"#), "{json}");
    }
}
