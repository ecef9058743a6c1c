//! Parsing of bucket URLs.

use std::{env, sync::Arc};

use object_store::{Error, ObjectStoreScheme, parse_url_opts};
use url::Url;

use super::{BucketError, BucketStore};

/// The default timeout of a request: sufficient for a part of 8 MiB on a slow connection.
const TIMEOUT: &str = "10 minutes";
/// Prefixes of environment variables that are options of a service.
const SERVICES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Options with other names.
const OTHERS: [&str; 3] = ["IDENTITY_ENDPOINT", "MSI_ENDPOINT", "SERVICE_ACCOUNT"];

impl BucketStore {
    /// Opens the location of a URL: `s3://bucket/run`, `gs://bucket/run`, `az://container/run`,
    /// `https://host/run`, with the feature `aws`, `gcp`, `azure` or `http` respectively, or `memory:///run`,
    /// which is new and empty. Sends no request.
    ///
    /// Credentials and other options are read from the environment variables that the tools of the service
    /// use: `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`,
    /// `AZURE_STORAGE_ACCOUNT_NAME` and so on. The timeout of a request is 10 minutes, unless `AWS_TIMEOUT`,
    /// `GOOGLE_TIMEOUT` or `AZURE_TIMEOUT` is set. An endpoint without TLS requires `AWS_ALLOW_HTTP=true`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL has another form, a password or a query, its feature is not enabled, or an
    /// option is missing or invalid.
    pub fn from_url(url: &str) -> Result<Self, BucketError> {
        let parsed = Url::parse(url).map_err(|source| BucketError::Url { source })?;
        // Azure's own schemes have the container in the user component.
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
        // The scheme itself permits unencrypted HTTP.
        let plain =
            (parsed.scheme() == "http").then(|| ("allow_http".to_owned(), "true".to_owned()));
        // The last value of a name is used.
        let timeout = ("timeout".to_owned(), TIMEOUT.to_owned());
        let options = std::iter::once(timeout).chain(environment()).chain(plain);
        let opened = parse_url_opts(&parsed, options);
        let (objects, prefix) = match opened {
            Ok(opened) => opened,
            Err(source) => {
                // The name for errors of the parse function itself, which can only fail for this reason.
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

/// Returns the feature of this crate that a service requires.
fn feature_of(scheme: ObjectStoreScheme) -> Option<&'static str> {
    match scheme {
        ObjectStoreScheme::AmazonS3 => Some("aws"),
        ObjectStoreScheme::GoogleCloudStorage => Some("gcp"),
        ObjectStoreScheme::MicrosoftAzure => Some("azure"),
        ObjectStoreScheme::Http => Some("http"),
        _ => None,
    }
}

/// Returns the options of services in the environment. Filtered by prefix, because `TOKEN` or `REGION` would
/// be options too.
fn environment() -> impl Iterator<Item = (String, String)> {
    env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let known = SERVICES.iter().any(|service| name.starts_with(service))
            || OTHERS.iter().any(|other| name == *other);
        known.then_some((name, value))
    })
}

/// Returns the URL as shown in messages.
fn place_of(url: &Url) -> String {
    let mut url = url.clone();
    url.set_fragment(None);
    url.as_str().trim_end_matches('/').to_owned()
}
