//! The settings of a world.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::EnvironmentError;
use crate::frame::Limits;

/// The settings of a world. All ranks have the same.
#[derive(Clone, derive_more::Debug)]
#[non_exhaustive]
pub struct WorldOptions {
    /// How long a rank waits for the others to come; longer than the clock counts is without an end, as for every time here.
    /// Default: 300 s, as torchrun's; `TINDERBOX_JOIN_TIMEOUT_S`.
    pub join_timeout: Duration,
    /// How long a call waits for the same call of the others, such as the save of a large shard. Default: ten minutes;
    /// `TINDERBOX_CALL_TIMEOUT_S`.
    pub call_timeout: Duration,
    /// How often a rank shows that it is alive. Default: 1 s; `TINDERBOX_HEARTBEAT_MS`.
    pub heartbeat: Duration,
    /// A rank that shows nothing for so many heartbeats is lost. They are counted by the rank that waits, while it runs: a
    /// machine that pauses as a whole loses nobody. Default: 10.
    pub heartbeats_until_lost: u32,
    /// A secret of all ranks: whoever does not know it is refused. `TINDERBOX_TOKEN`. It is sent as it is; use it on a
    /// network that you trust, or together with TLS.
    #[debug("{:?}", token.as_ref().map(|_| "..."))]
    pub token: Option<String>,
    /// A directory with `ca.pem`, `cert.pem` and `key.pem`: connections are encrypted, and both sides show a certificate
    /// of this authority. `TINDERBOX_TLS`.
    pub tls: Option<PathBuf>,
    /// The largest frames that are read.
    pub limits: Limits,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            join_timeout: Duration::from_secs(300),
            call_timeout: Duration::from_secs(600),
            heartbeat: Duration::from_secs(1),
            heartbeats_until_lost: 10,
            token: None,
            tls: None,
            limits: Limits::default(),
        }
    }
}

impl WorldOptions {
    /// Reads the variables that are named with the fields; the rest are the defaults.
    ///
    /// # Errors
    ///
    /// When a variable is no number, or the token is not UTF-8.
    pub fn from_env() -> Result<Self, EnvironmentError> {
        Self::read(|name| std::env::var_os(name))
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, EnvironmentError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let time = |name: &str, unit: fn(u64) -> Duration, default| match variable(name) {
            None => Ok(default),
            Some(value) => match value.to_string_lossy().parse() {
                Ok(number) if number > 0 => Ok(unit(number)),
                _ => Err(EnvironmentError::NotANumber {
                    name: name.to_owned(),
                    value: value.to_string_lossy().into_owned(),
                }),
            },
        };
        const TOKEN: &str = "TINDERBOX_TOKEN";
        let token = variable(TOKEN).map(OsString::into_string).transpose();
        let token = token.map_err(|_| EnvironmentError::NotText {
            name: TOKEN.to_owned(),
        })?;
        let defaults = Self::default();
        let (seconds, join, call) = (
            Duration::from_secs,
            defaults.join_timeout,
            defaults.call_timeout,
        );
        Ok(Self {
            join_timeout: time("TINDERBOX_JOIN_TIMEOUT_S", seconds, join)?,
            call_timeout: time("TINDERBOX_CALL_TIMEOUT_S", seconds, call)?,
            heartbeat: time(
                "TINDERBOX_HEARTBEAT_MS",
                Duration::from_millis,
                defaults.heartbeat,
            )?,
            token,
            tls: variable("TINDERBOX_TLS").map(PathBuf::from),
            ..defaults
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_replace_the_defaults() {
        let read = |name: &str, value: &str| {
            WorldOptions::read(|known| (known == name).then(|| value.into()))
        };
        let found = read("TINDERBOX_HEARTBEAT_MS", "50").unwrap();
        assert_eq!(found.heartbeat, Duration::from_millis(50));
        assert_eq!(found.join_timeout, WorldOptions::default().join_timeout);
        let found = read("TINDERBOX_TOKEN", "secret").unwrap();
        assert_eq!(found.token.as_deref(), Some("secret"));
        assert!(!format!("{found:?}").contains("secret"));
        let most = u64::MAX.to_string();
        let found = read("TINDERBOX_JOIN_TIMEOUT_S", &most).unwrap();
        assert_eq!(found.join_timeout, Duration::from_secs(u64::MAX));
        let error = read("TINDERBOX_JOIN_TIMEOUT_S", "0").unwrap_err();
        insta::assert_snapshot!(error, @"TINDERBOX_JOIN_TIMEOUT_S is `0`: expected a whole number in its range");
    }

    /// A variable that is not UTF-8 is not taken for one that is not set: connections would not be encrypted.
    #[cfg(unix)]
    #[test]
    fn variables_that_are_not_utf_8() {
        use std::os::unix::ffi::OsStringExt;

        let text = OsString::from_vec(b"caf\xe9".to_vec());
        let read = |name: &str| WorldOptions::read(|known| (known == name).then(|| text.clone()));
        let found = read("TINDERBOX_TLS").unwrap();
        assert_eq!(found.tls, Some(PathBuf::from(&text)));
        let error = read("TINDERBOX_TOKEN").unwrap_err();
        insta::assert_snapshot!(error, @"TINDERBOX_TOKEN is not UTF-8: use a text");
        let error = read("TINDERBOX_HEARTBEAT_MS").unwrap_err();
        insta::assert_snapshot!(error, @"TINDERBOX_HEARTBEAT_MS is `caf�`: expected a whole number in its range");
    }
}
