//! gRPC, as far as members need it: two unary calls and one stream. The size of each message and the number of streams are limited.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use prost::Message;
use quorate_etcd::wire::{
    PutRequest, PutResponse, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest, WatchRequestUnion,
    WatchResponse,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;

use crate::registry::MemberId;
use crate::server::{Answer, Service};
use crate::store::StoreError;
use crate::v3::{Place, What, header};

const KIND: HeaderValue = HeaderValue::from_static("application/grpc");
const MESSAGE_BYTES: usize = 8 << 10;
const MESSAGE: Duration = Duration::from_secs(4);
/// A flag, and the length of a message.
const FRAME: usize = 5;

/// The codes of gRPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    InvalidArgument = 3,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    /// Clients try again after a while.
    Unavailable = 14,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Status(Code, String);

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::NoToken { .. } => Code::NotFound,
            StoreError::Refused { .. } => Code::FailedPrecondition,
            StoreError::Full { .. } => Code::ResourceExhausted,
            StoreError::Failed(_) => Code::Unavailable,
        };
        Status(code, error.to_string())
    }
}

pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(KIND.as_bytes()))
}

pub(crate) async fn answer(service: Arc<Service>, from: IpAddr, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let outcome = match head.uri.path() {
        _ if !service.is_within_rate(from) => {
            Err(Status(Code::Unavailable, String::from("this address sends too many requests")))
        }
        "/etcdserverpb.KV/Range" => unary(body, async |request| range(&service, request).await).await,
        "/etcdserverpb.KV/Put" => unary(body, async |request| put(&service, request).await).await,
        "/etcdserverpb.Watch/Watch" => watch(service, body).await,
        "/etcdserverpb.Auth/Authenticate" => Err(Status(
            Code::Unimplemented,
            String::from("this discovery service has no users: leave out --discovery-user"),
        )),
        _ => Err(Status(
            Code::Unimplemented,
            String::from("a discovery service serves KV.Range, KV.Put and Watch alone"),
        )),
    };
    outcome.unwrap_or_else(refusal)
}

async fn unary<Q: Message + Default, A: Message>(
    body: Incoming,
    work: impl AsyncFnOnce(Q) -> Result<A, Status>,
) -> Result<Answer, Status> {
    let mut messages = Messages::new(body);
    let request = timeout(MESSAGE, messages.next()).await;
    let request = request.map_err(|_| bad("the request did not arrive in time"))??.ok_or_else(|| bad("no request"))?;
    let answer = work(request).await?;
    let body = Full::new(framed(&answer)).with_trailers(std::future::ready(Some(Ok(trailers(None)))));
    Ok(respond(body.boxed_unsync()))
}

async fn range(service: &Service, request: RangeRequest) -> Result<RangeResponse, Status> {
    let place = place(&request.key, &request.range_end)?;
    match service.store.read(&place.token).await {
        Ok(seen) => Ok(place.range(&seen.registry, seen.index)),
        // As in an etcd: there is nothing at this key.
        Err(StoreError::NoToken { index }) => Ok(RangeResponse { header: Some(header(index)), ..Default::default() }),
        Err(error) => Err(error.into()),
    }
}

async fn put(service: &Service, request: PutRequest) -> Result<PutResponse, Status> {
    let Place { token, what: What::Member(id), .. } = place(&request.key, &[])? else {
        return Err(Status(
            Code::PermissionDenied,
            String::from("only members register; the size is set by /new?size=N"),
        ));
    };
    if request.lease != 0 || request.ignore_value || request.ignore_lease {
        return Err(bad("a member registers with a value, and without a lease"));
    }
    let value = String::from_utf8(request.value).map_err(|_| bad("the value is not text"))?;
    let done = service.register(&token, &id, &value).await?;
    Ok(PutResponse { header: Some(header(done.index)), prev_kv: None })
}

async fn watch(service: Arc<Service>, body: Incoming) -> Result<Answer, Status> {
    let mut requests = Messages::new(body);
    let first = timeout(MESSAGE, requests.next()).await.map_err(|_| bad("the request did not arrive in time"))??;
    let Some(WatchRequest { request_union: Some(WatchRequestUnion::CreateRequest(create)) }) = first else {
        return Err(bad("a watch begins with a request to create it"));
    };
    let place = place(&create.key, &create.range_end)?;
    let permit = service.waits.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Status(Code::Unavailable, String::from("too many clients wait")))?;
    let (answers, stream) = mpsc::channel(4);
    tokio::spawn(async move {
        let _place = permit;
        let ended = tokio::select! {
            status = follow(&service, &place, &create, &mut requests, &answers) => status,
            // The client has gone.
            () = answers.closed() => return,
        };
        let _ = answers.send(Ok(Frame::trailers(trailers(ended.as_ref())))).await;
    });
    Ok(respond(StreamBody::new(ReceiverStream::new(stream)).boxed_unsync()))
}

type Answers = mpsc::Sender<Result<Frame<Bytes>, Infallible>>;

/// Sends registrations until the client has enough, or has waited for long; then it watches again.
async fn follow(
    service: &Service,
    place: &Place,
    create: &WatchCreateRequest,
    requests: &mut Messages<Incoming>,
    answers: &Answers,
) -> Option<Status> {
    let until = Instant::now() + service.bounds.longest_wait;
    let send = async |answer: WatchResponse| answers.send(Ok(Frame::data(framed(&answer)))).await.is_ok();
    let index = match service.store.read(&place.token).await {
        Ok(seen) => seen.index,
        Err(StoreError::NoToken { index }) => index,
        Err(error) => return Some(error.into()),
    };
    if !send(WatchResponse { header: Some(header(index)), created: true, ..Default::default() }).await {
        return None;
    }
    let only: Option<&MemberId> = match &place.what {
        What::Member(id) => Some(id),
        What::Members | What::Size => None,
    };
    let mut from = u64::try_from(create.start_revision).ok().filter(|from| *from > 0).unwrap_or(index + 1);
    loop {
        let found = tokio::select! {
            found = timeout_at(until, service.wait(&place.token, only, from)) => found,
            request = requests.next() => match other_request(request, index) {
                Ok(Some(answer)) if answer.canceled => {
                    send(answer).await;
                    return None;
                }
                Ok(Some(answer)) => {
                    send(answer).await;
                    continue;
                }
                Ok(None) => return None,
                Err(status) => return Some(status),
            },
        };
        match found {
            Ok(Ok((_, _))) if place.what == What::Size => from = u64::MAX,
            Ok(Ok((member, at))) => {
                from = member.index + 1;
                if !send(place.event(&member, at)).await {
                    return None;
                }
            }
            // A member whose token has expired would watch again at once, and for ever.
            Ok(Err(StoreError::NoToken { .. })) => {
                tokio::time::sleep_until(until).await;
                return Some(Status(Code::Unavailable, String::from("no such token, or it has expired")));
            }
            Ok(Err(error)) => return Some(error.into()),
            Err(_) => return Some(Status(Code::Unavailable, String::from("nothing new for long; watch again"))),
        }
    }
}

/// What a client may ask for while its watch is open. None: it has ended the stream.
fn other_request(request: Result<Option<WatchRequest>, Status>, index: u64) -> Result<Option<WatchResponse>, Status> {
    let Some(request) = request?.and_then(|request| request.request_union) else { return Ok(None) };
    let answer = WatchResponse { header: Some(header(index)), ..Default::default() };
    match request {
        WatchRequestUnion::CancelRequest(_) => Ok(Some(WatchResponse { canceled: true, ..answer })),
        WatchRequestUnion::ProgressRequest(_) => Ok(Some(WatchResponse { watch_id: -1, ..answer })),
        WatchRequestUnion::CreateRequest(_) => Err(bad("one stream has one watch")),
    }
}

fn place(key: &[u8], range_end: &[u8]) -> Result<Place, Status> {
    let why = "a discovery service has no keys but those of tokens: /_etcd/registry/TOKEN/…";
    Place::parse(key, range_end).ok_or_else(|| Status(Code::PermissionDenied, String::from(why)))
}

fn bad(why: &str) -> Status {
    Status(Code::InvalidArgument, why.to_owned())
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(FRAME + length);
    bytes.push(0);
    bytes.extend((length as u32).to_be_bytes());
    message.encode(&mut bytes).expect("a vector grows");
    bytes.into()
}

fn trailers(status: Option<&Status>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    let code = status.map_or(0, |Status(code, _)| *code as u32);
    trailers.insert("grpc-status", HeaderValue::from(code));
    if let Some(Status(_, message)) = status {
        let message: String =
            message.chars().map(|c| if (' '..='~').contains(&c) && c != '%' { c } else { '?' }).collect();
        trailers.insert("grpc-message", HeaderValue::from_str(&message).expect("plain ASCII"));
    }
    trailers
}

fn respond(body: http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>) -> Answer {
    Response::builder().header(CONTENT_TYPE, KIND).body(body).expect("the parts are constants")
}

fn refusal(status: Status) -> Answer {
    let mut answer = respond(Empty::new().boxed_unsync());
    answer.headers_mut().extend(trailers(Some(&status)));
    answer
}

/// The messages in a body, one after another.
struct Messages<B> {
    body: B,
    buffer: Vec<u8>,
}

impl<B: Body<Data = Bytes> + Unpin> Messages<B> {
    fn new(body: B) -> Self {
        Messages { body, buffer: Vec::new() }
    }

    /// Can be dropped while it waits: what has arrived is kept.
    async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        loop {
            if let Some(message) = self.take()? {
                return M::decode(message.as_slice()).map(Some).map_err(|_| bad("the message cannot be parsed"));
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None | Some(Err(_)) => return Err(bad("the request broke off")),
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().unwrap_or_default()),
            }
        }
    }

    /// The next message, if all of it is there.
    fn take(&mut self) -> Result<Option<Vec<u8>>, Status> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<FRAME>() else { return Ok(None) };
        let [flag, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if flag != 0 {
            return Err(Status(Code::Unimplemented, String::from("messages are not compressed here")));
        }
        if length > MESSAGE_BYTES {
            return Err(Status(Code::ResourceExhausted, format!("a message is larger than {MESSAGE_BYTES} bytes")));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = rest[..length].to_vec();
        self.buffer.drain(..FRAME + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> RangeRequest {
        RangeRequest { key: b"/_etcd/registry/x".to_vec(), ..Default::default() }
    }

    async fn read(bytes: Vec<u8>) -> Result<Option<RangeRequest>, Status> {
        Messages::new(Full::new(Bytes::from(bytes))).next().await
    }

    #[tokio::test]
    async fn messages_are_read_one_after_another() {
        let twice = [framed(&request()), framed(&request())].concat();
        let mut messages = Messages::new(Full::new(Bytes::from(twice)));
        assert_eq!(messages.next().await, Ok(Some(request())));
        assert_eq!(messages.next().await, Ok(Some(request())));
        assert_eq!(messages.next::<RangeRequest>().await, Ok(None));
    }

    #[tokio::test]
    async fn truncated_compressed_and_huge_messages_are_refused() {
        let whole = framed(&request()).to_vec();
        for length in 1..whole.len() {
            assert!(read(whole[..length].to_vec()).await.is_err(), "{length} bytes");
        }
        let compressed = [&[1], &whole[1..]].concat();
        assert_eq!(read(compressed).await.unwrap_err().0, Code::Unimplemented);
        let huge = vec![0, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(read(huge).await.unwrap_err().0, Code::ResourceExhausted);
    }

    #[test]
    fn errors_are_headers_that_any_text_fits_into() {
        let answer = refusal(Status(Code::FailedPrecondition, String::from("a\nb ü 100%")));
        assert_eq!(answer.headers()["grpc-status"], "9");
        assert_eq!(answer.headers()["grpc-message"], "a?b ? 100?");
    }

    #[test]
    fn fuzz_messages() {
        let watch = WatchRequest { request_union: Some(WatchRequestUnion::CreateRequest(Default::default())) };
        let samples = [framed(&request()).to_vec(), framed(&watch).to_vec()];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        quorate_fuzz::campaign(&samples, |input| {
            let _ = runtime.block_on(read(input.to_vec()));
            let _ = runtime.block_on(Messages::new(Full::new(Bytes::copy_from_slice(input))).next::<WatchRequest>());
        });
    }
}
