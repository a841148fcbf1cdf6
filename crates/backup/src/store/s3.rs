//! Objects in an S3 bucket. A large object is a multipart upload. A note next to it, `PATH.upload`, names the upload until it is complete,
//! so that anyone can abort an unfinished one later. Notes are not objects: listings skip them.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    BackoffConfig, Certificate, ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, RetryConfig, UpdateVersion,
};
use tokio::task::JoinSet;

use super::{Listed, Object, PART, PARTS_IN_FLIGHT, Tag, Trouble};
use crate::settings::{Credentials, Patience, S3Location};

const NOTE: &str = ".upload";
const READS_IN_FLIGHT: usize = 2;

#[derive(Clone)]
pub(super) struct S3 {
    client: Arc<AmazonS3>,
    prefix: String,
}

impl S3 {
    pub(super) fn open(place: &S3Location, patience: Patience) -> Result<Self, Trouble> {
        // The first call has chosen; it is the same choice everywhere.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&place.bucket)
            .with_region(&place.region)
            .with_virtual_hosted_style_request(!place.path_style)
            .with_client_options(client_options(place, patience)?)
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: patience.retries,
                retry_timeout: patience.in_all,
            });
        if let Some(endpoint) = &place.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let client = with_credentials(builder, &place.credentials)?.build();
        let client = client.map_err(|error| Trouble::Settings(error.to_string()))?;
        Ok(S3 { client: Arc::new(client), prefix: place.prefix.trim_matches('/').to_owned() })
    }

    fn at(&self, path: &str) -> Path {
        Path::from(format!("{}/{path}", self.prefix))
    }

    fn relative(&self, path: &Path) -> String {
        let path = path.as_ref();
        path.strip_prefix(&self.prefix).unwrap_or(path).trim_start_matches('/').to_owned()
    }

    pub(super) async fn put_new(&self, path: &str, bytes: Bytes) -> Result<Tag, Trouble> {
        self.put(path, bytes, PutMode::Create).await
    }

    pub(super) async fn replace(&self, path: &str, bytes: Bytes, read: &Tag) -> Result<Tag, Trouble> {
        let version = UpdateVersion { e_tag: Some(read.0.clone()), version: None };
        self.put(path, bytes, PutMode::Update(version)).await
    }

    async fn put(&self, path: &str, bytes: Bytes, mode: PutMode) -> Result<Tag, Trouble> {
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.client.put_opts(&self.at(path), PutPayload::from_bytes(bytes), options).await;
        Ok(Tag(put.map_err(|error| Trouble::of(&error))?.e_tag.unwrap_or_default()))
    }

    pub(super) async fn get(&self, path: &str, limit: u64) -> Result<Object, Trouble> {
        let found = self.client.get(&self.at(path)).await.map_err(|error| Trouble::of(&error))?;
        if found.meta.size > limit {
            return Err(Trouble::TooLarge { limit, found: found.meta.size });
        }
        let tag = Tag(found.meta.e_tag.clone().unwrap_or_default());
        let bytes = found.bytes().await.map_err(|error| Trouble::of(&error))?;
        Ok(Object { bytes, tag })
    }

    /// In ranges of one version, each a separate request: a cut connection costs one of them.
    pub(super) async fn read(&self, path: &str) -> Result<(u64, BoxStream<'static, Result<Bytes, Trouble>>), Trouble> {
        let at = self.at(path);
        let about = self.client.head(&at).await.map_err(|error| Trouble::of(&error))?;
        let (bytes, tag) = (about.size, about.e_tag);
        let ranges = (0..bytes).step_by(PART).map(move |from| from..(from + PART as u64).min(bytes));
        let client = self.client.clone();
        let pieces = stream::iter(ranges).map(move |range| {
            let (client, at) = (client.clone(), at.clone());
            let options =
                GetOptions { range: Some(GetRange::Bounded(range)), if_match: tag.clone(), ..GetOptions::default() };
            async move { client.get_opts(&at, options).await?.bytes().await }
        });
        let pieces = pieces.buffered(READS_IN_FLIGHT).map_err(|error| Trouble::of(&error));
        Ok((bytes, Box::pin(pieces)))
    }

    pub(super) fn upload(&self, path: &str) -> S3Upload {
        S3Upload {
            s3: self.clone(),
            path: path.to_owned(),
            first: None,
            id: None,
            sent: 0,
            in_flight: JoinSet::new(),
            parts: Vec::new(),
        }
    }

    pub(super) async fn list(&self, under: &str) -> Result<Vec<Listed>, Trouble> {
        let mut listed = self.list_all(under).await?;
        listed.retain(|object| !object.path.ends_with(NOTE));
        Ok(listed)
    }

    pub(super) async fn unfinished(&self, under: &str) -> Result<Vec<String>, Trouble> {
        let listed = self.list_all(under).await?;
        Ok(listed.iter().filter_map(|note| note.path.strip_suffix(NOTE)).map(str::to_owned).collect())
    }

    async fn list_all(&self, under: &str) -> Result<Vec<Listed>, Trouble> {
        let objects = self.client.list(Some(&self.at(under))).try_collect::<Vec<_>>().await;
        let objects = objects.map_err(|error| Trouble::of(&error))?;
        let listed = objects.into_iter().map(|object| Listed {
            path: self.relative(&object.location),
            bytes: object.size,
            modified: Timestamp::from_second(object.last_modified.timestamp()).unwrap_or(Timestamp::UNIX_EPOCH),
        });
        Ok(listed.collect())
    }

    pub(super) async fn delete(&self, path: &str) -> Result<(), Trouble> {
        self.client.delete(&self.at(path)).await.map_err(|error| Trouble::of(&error))
    }

    pub(super) async fn clear_abandoned(&self, under: &str) -> Result<(), Trouble> {
        for note in self.list_all(under).await? {
            let Some(path) = note.path.strip_suffix(NOTE) else { continue };
            let id = String::from_utf8_lossy(&self.get(&note.path, super::SMALL).await?.bytes).into_owned();
            self.abort(path, &id).await?;
            self.delete(&note.path).await?;
        }
        Ok(())
    }

    async fn abort(&self, path: &str, id: &String) -> Result<(), Trouble> {
        match self.client.abort_multipart(&self.at(path), id).await.map_err(|error| Trouble::of(&error)) {
            Ok(()) | Err(Trouble::NotFound) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }
}

fn client_options(place: &S3Location, patience: Patience) -> Result<ClientOptions, Trouble> {
    let plain = place.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
    let options = ClientOptions::new()
        .with_allow_http(plain)
        .with_connect_timeout(patience.connect)
        .with_timeout(patience.request);
    let Some(pem) = &place.ca else { return Ok(options) };
    let unusable = || Trouble::Settings(String::from("the CA of the store is no certificate in PEM"));
    let certificates = Certificate::from_pem_bundle(pem.as_bytes()).map_err(|_| unusable())?;
    if certificates.is_empty() {
        return Err(unusable());
    }
    Ok(certificates.into_iter().fold(options.with_no_system_certificates(true), ClientOptions::with_root_certificate))
}

fn with_credentials(builder: AmazonS3Builder, credentials: &Credentials) -> Result<AmazonS3Builder, Trouble> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (id, secret, token) = match credentials {
        Credentials::MachineRole => return Ok(with_role(builder)),
        Credentials::Keys { access_key_id, secret_access_key, session_token } => (
            access_key_id.clone(),
            secret_access_key.expose().to_owned(),
            session_token.as_ref().map(|token| token.expose().to_owned()),
        ),
        Credentials::Environment => {
            let need = |name: &str| variable(name).ok_or_else(|| Trouble::NoCredentials(format!("{name} is not set")));
            (need("AWS_ACCESS_KEY_ID")?, need("AWS_SECRET_ACCESS_KEY")?, variable("AWS_SESSION_TOKEN"))
        }
    };
    let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
    Ok(match token {
        Some(token) => builder.with_token(token),
        None => builder,
    })
}

/// Containers and workloads are told by variables whom to ask; a machine asks its cloud's metadata service.
fn with_role(mut builder: AmazonS3Builder) -> AmazonS3Builder {
    const VARIABLES: [&str; 8] = [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_ENDPOINT_URL_STS",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_METADATA_ENDPOINT",
    ];
    for name in VARIABLES {
        if let (Ok(value), Ok(key)) = (std::env::var(name), name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>()) {
            builder = builder.with_config(key, value);
        }
    }
    builder
}

pub(super) struct S3Upload {
    s3: S3,
    path: String,
    /// Kept back until there is a second: an object of one part is simply put.
    first: Option<Bytes>,
    id: Option<String>,
    sent: usize,
    in_flight: JoinSet<Result<(usize, PartId), Trouble>>,
    parts: Vec<(usize, PartId)>,
}

impl S3Upload {
    pub(super) async fn write(&mut self, piece: Bytes) -> Result<(), Trouble> {
        if self.sent == 0 && self.first.is_none() {
            self.first = Some(piece);
            return Ok(());
        }
        if self.id.is_none() {
            self.begin().await?;
        }
        if let Some(first) = self.first.take() {
            self.send(first).await?;
        }
        self.send(piece).await
    }

    async fn begin(&mut self) -> Result<(), Trouble> {
        let at = self.s3.at(&self.path);
        let id = self.s3.client.create_multipart(&at).await.map_err(|error| Trouble::of(&error))?;
        self.id = Some(id.clone());
        let note = self.s3.at(&format!("{}{NOTE}", self.path));
        let noted = self.s3.client.put(&note, PutPayload::from(id)).await;
        noted.map(drop).map_err(|error| Trouble::of(&error))
    }

    async fn send(&mut self, piece: Bytes) -> Result<(), Trouble> {
        while self.in_flight.len() >= PARTS_IN_FLIGHT {
            self.receive().await?;
        }
        let (client, at, number) = (self.s3.client.clone(), self.s3.at(&self.path), self.sent);
        let id = self.id.clone().unwrap_or_default();
        self.in_flight.spawn(async move {
            let part = client.put_part(&at, &id, number, PutPayload::from_bytes(piece)).await;
            part.map(|part| (number, part)).map_err(|error| Trouble::of(&error))
        });
        self.sent += 1;
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), Trouble> {
        let interrupted = || Trouble::Other(String::from("the upload was interrupted"));
        let part = self.in_flight.join_next().await.ok_or_else(interrupted)?;
        self.parts.push(part.map_err(|_| interrupted())??);
        Ok(())
    }

    pub(super) async fn finish(mut self) -> Result<(), Trouble> {
        let completed = self.complete().await;
        if completed.is_err() {
            self.abort().await;
        }
        completed
    }

    async fn complete(&mut self) -> Result<(), Trouble> {
        let Some(id) = self.id.clone() else {
            let whole = self.first.take().unwrap_or_default();
            return self.s3.put_new(&self.path, whole).await.map(drop);
        };
        while !self.in_flight.is_empty() {
            self.receive().await?;
        }
        self.parts.sort_by_key(|(number, _)| *number);
        let parts = self.parts.drain(..).map(|(_, part)| part).collect();
        let completed = self.s3.client.complete_multipart(&self.s3.at(&self.path), &id, parts).await;
        completed.map_err(|error| Trouble::of(&error))?;
        self.s3.delete(&format!("{}{NOTE}", self.path)).await
    }

    pub(super) async fn abort(mut self) {
        self.in_flight.shutdown().await;
        if let Some(id) = self.id.take()
            && self.s3.abort(&self.path, &id).await.is_ok()
        {
            // What stays is for `clear_abandoned`.
            let _ = self.s3.delete(&format!("{}{NOTE}", self.path)).await;
        }
    }
}
