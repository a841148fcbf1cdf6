//! Behaviour of Elastic Load Balancing that moto lacks: names of load balancers are unique and limited, a new one is provisioned for a
//! while and its targets are checked, and a deleted one releases its target group later.

use std::sync::Mutex;

use super::cloud::{Api, BALANCING, Fields, get, items, one, texts};
use super::strict::{Answer, error};

#[derive(Default)]
pub struct Balancing {
    /// In how many answers each of these is still so.
    provisioning: Mutex<u32>,
    examining: Mutex<u32>,
    letting_go: Mutex<u32>,
}

/// Whether it is still so, which it is once less from now on.
fn still(count: &Mutex<u32>) -> bool {
    let mut count = count.lock().expect("a number");
    let is_so = *count > 0;
    *count = count.saturating_sub(1);
    is_so
}

impl Balancing {
    pub async fn refusal(&self, api: &Api, action: &str, asked: &Fields, lag: u32) -> Option<Answer> {
        let asks = |name: &str| get(asked, name).unwrap_or_default();
        let begin = |count: &Mutex<u32>| *count.lock().expect("a number") = lag;
        match action {
            "CreateLoadBalancer" => {
                let name = asks("Name");
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                if name.len() > 32 || !name.bytes().all(fits) || name.starts_with("internal-") || name.ends_with('-') {
                    return Some(error(400, "ValidationError", "The load balancer name is not valid"));
                }
                let all = api.call("DescribeLoadBalancers", [BALANCING]).await;
                if texts(&all, "LoadBalancerName").iter().any(|known| known == name) {
                    let message = "A load balancer with the same name exists, but with different settings";
                    return Some(error(400, "DuplicateLoadBalancerName", message));
                }
                begin(&self.provisioning);
                None
            }
            "CreateTargetGroup" if asks("Name").len() > 32 => {
                Some(error(400, "ValidationError", "The target group name is not valid"))
            }
            "RegisterTargets" => {
                begin(&self.examining);
                None
            }
            "DeleteLoadBalancer" => {
                begin(&self.letting_go);
                None
            }
            "DeleteTargetGroup" if still(&self.letting_go) => {
                Some(error(400, "ResourceInUse", "The target group is currently in use by a listener"))
            }
            // One of a load balancer without its security groups cannot be changed.
            "SetSecurityGroups" => {
                let all = items(&api.call("DescribeLoadBalancers", [BALANCING]).await, "LoadBalancers");
                let its =
                    all.into_iter().find(|balancer| one(balancer, "LoadBalancerArn") == asks("LoadBalancerArn"))?;
                let none = items(&its, "SecurityGroups").is_empty();
                none.then(|| error(400, "InvalidConfigurationRequest", "You cannot add security groups"))
            }
            _ => None,
        }
    }

    pub fn as_aws_says(&self, action: &str, (status, text): Answer) -> Answer {
        match action {
            "DescribeLoadBalancers" if text.contains("<Code>") && still(&self.provisioning) => {
                (status, text.replace("<Code>active</Code>", "<Code>provisioning</Code>"))
            }
            "DescribeTargetHealth" if still(&self.examining) => {
                (status, text.replace("<State>healthy</State>", "<State>initial</State>"))
            }
            // Those that are not registered are as wanted.
            "DeregisterTargets" if text.contains("InvalidTarget") => {
                (200, String::from("<DeregisterTargetsResponse><DeregisterTargetsResult/></DeregisterTargetsResponse>"))
            }
            _ => (status, text),
        }
    }
}
