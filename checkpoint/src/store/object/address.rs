//! The address of a bucket.

use std::{env, io, sync::Arc};

use object_store::{Error, ObjectStoreScheme, parse_url_opts};
use url::Url;

use super::BucketStore;

/// Variables of the environment that are options of a service begin with one of these.
const SERVICES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Those that have other names.
const OTHERS: [&str; 3] = ["IDENTITY_ENDPOINT", "MSI_ENDPOINT", "SERVICE_ACCOUNT"];

/// Why a bucket can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// It is no URL.
    #[error("`{url}` is no URL: write s3://bucket/run, gs://bucket/run or az://container/run")]
    Url {
        /// What was given.
        url: String,
        /// What went wrong.
        source: url::ParseError,
    },
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
    /// `AZURE_STORAGE_ACCOUNT_NAME` and so on. `AWS_ALLOW_HTTP=true` is needed for an endpoint without TLS.
    ///
    /// # Errors
    ///
    /// When the URL is none of these, its feature is not there, or an option is missing or wrong.
    pub fn from_url(url: &str) -> Result<Self, BucketError> {
        let parsed = Url::parse(url).map_err(|source| BucketError::Url {
            url: url.to_owned(),
            source,
        })?;
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
        let opened = parse_url_opts(&parsed, environment().chain(plain));
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

/// The URL without what may be secret.
fn place_of(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Where there is no host, there is no password either.
    let _ = url.set_password(None);
    url.as_str().trim_end_matches('/').to_owned()
}
