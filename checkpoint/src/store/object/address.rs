//! The address of a bucket.

use std::{env, io, sync::Arc};

use object_store::{Error, ObjectStoreScheme, parse_url_opts};
use url::Url;

use super::BucketStore;

/// How long one request may take, unless chosen: a part of 8 MiB has so long on the slowest of lines.
const TIMEOUT: &str = "10 minutes";
/// Variables of the environment that are options of a service begin with one of these.
const SERVICES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Those that have other names.
const OTHERS: [&str; 3] = ["IDENTITY_ENDPOINT", "MSI_ENDPOINT", "SERVICE_ACCOUNT"];

/// Why a bucket can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// It is no URL.
    #[error("no URL of a bucket: write s3://bucket/run, gs://bucket/run or az://container/run")]
    Url {
        /// What went wrong.
        source: url::ParseError,
    },
    /// It has a password, or what may be a signature, which every message would repeat.
    #[error(
        "a URL of a bucket may have no user, password or query: put credentials into the environment"
    )]
    Secret,
    /// It is a directory.
    #[error("{place} is a directory: open it as one")]
    Directory {
        /// The URL.
        place: String,
    },
    /// The program was built without the service.
    #[error("{place} needs the feature `{feature}` of tinderbox-checkpoint: build with it")]
    Feature {
        /// The URL.
        place: String,
        /// The feature of this crate.
        feature: &'static str,
    },
    /// The service can't be used, or the URL is of none.
    #[error("{place} can't be opened")]
    Open {
        /// The URL.
        place: String,
        /// What went wrong.
        source: Error,
    },
    /// There are no threads for requests.
    #[error("no threads for requests to a bucket")]
    Threads {
        /// What went wrong.
        source: io::Error,
    },
}

impl BucketStore {
    /// What is below a URL: `s3://bucket/run`, `gs://bucket/run`, `az://container/run`, `https://host/run`, each
    /// with the feature `aws`, `gcp`, `azure` or `http`, or `memory:///run`, new and empty. Makes no request.
    ///
    /// Credentials and other options are taken from the environment, from the variables that the tools of the
    /// service use: `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`,
    /// `AZURE_STORAGE_ACCOUNT_NAME` and so on. A request may take 10 minutes, unless `AWS_TIMEOUT`,
    /// `GOOGLE_TIMEOUT` or `AZURE_TIMEOUT` says otherwise. `AWS_ALLOW_HTTP=true` is needed for an endpoint
    /// without TLS.
    ///
    /// # Errors
    ///
    /// When the URL is not one of these or has a password or a query, its feature is not there, or an option is
    /// missing or wrong.
    pub fn from_url(url: &str) -> Result<Self, BucketError> {
        let parsed = Url::parse(url).map_err(|source| BucketError::Url { source })?;
        // Azure's own schemes have the container in the place of a user.
        let is_web = matches!(parsed.scheme(), "http" | "https");
        let has_user = !parsed.username().is_empty() && is_web;
        if has_user || parsed.password().is_some() || parsed.query().is_some() {
            return Err(BucketError::Secret);
        }
        let place = place_of(&parsed);
        let scheme = ObjectStoreScheme::parse(&parsed)
            .ok()
            .map(|(scheme, _)| scheme);
        if scheme == Some(ObjectStoreScheme::Local) {
            return Err(BucketError::Directory { place });
        }
        // Whoever writes this scheme allows it.
        let plain =
            (parsed.scheme() == "http").then(|| ("allow_http".to_owned(), "true".to_owned()));
        // The last of a name counts.
        let timeout = ("timeout".to_owned(), TIMEOUT.to_owned());
        let options = std::iter::once(timeout).chain(environment()).chain(plain);
        let opened = parse_url_opts(&parsed, options);
        let (objects, prefix) = match opened {
            Ok(opened) => opened,
            Err(source) => {
                // Its name for errors of the function itself, which have this one reason.
                let unbuilt = matches!(
                    source,
                    Error::Generic {
                        store: "parse_url",
                        ..
                    }
                );
                return Err(match scheme.and_then(feature_of) {
                    Some(feature) if unbuilt => BucketError::Feature { place, feature },
                    _ => BucketError::Open { place, source },
                });
            }
        };
        Self::at_place(Arc::from(objects), prefix, place)
    }
}

/// The feature of this crate that a service needs.
fn feature_of(scheme: ObjectStoreScheme) -> Option<&'static str> {
    match scheme {
        ObjectStoreScheme::AmazonS3 => Some("aws"),
        ObjectStoreScheme::GoogleCloudStorage => Some("gcp"),
        ObjectStoreScheme::MicrosoftAzure => Some("azure"),
        ObjectStoreScheme::Http => Some("http"),
        _ => None,
    }
}

/// The options of services in the environment. Others are left out: `TOKEN` or `REGION` would be options,
/// too.
fn environment() -> impl Iterator<Item = (String, String)> {
    env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let known = SERVICES.iter().any(|service| name.starts_with(service))
            || OTHERS.iter().any(|other| name == *other);
        known.then_some((name, value))
    })
}

/// The URL as messages name it.
fn place_of(url: &Url) -> String {
    let mut url = url.clone();
    url.set_fragment(None);
    url.as_str().trim_end_matches('/').to_owned()
}
