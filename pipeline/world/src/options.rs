//! The settings of a world.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::EnvironmentError;

/// The settings of a world. All ranks have the same settings.
#[derive(Clone, derive_more::Debug)]
#[non_exhaustive]
pub struct WorldOptions {
    /// The longest wait of a rank for the others to join. A time beyond the range of the clock has no end, here and below. If a
    /// rank fails while processes still connect, the others end only after this time. Default: 300 s, as in torchrun;
    /// `TINDERBOX_JOIN_TIMEOUT_S`.
    pub join_timeout: Duration,
    /// The longest wait of a call for the same call of the others, also while they make progress. Raise it if the times of
    /// ranks for their shards of a save differ by more. Default: ten minutes; `TINDERBOX_CALL_TIMEOUT_S`.
    pub call_timeout: Duration,
    /// The time between two heartbeats. Default: 1 s; `TINDERBOX_HEARTBEAT_MS`.
    pub heartbeat: Duration,
    /// The number of heartbeats without any bytes after which a rank is lost: a part of a frame counts as a sign of life. The
    /// rank that waits counts them while it runs, so a machine that pauses as a whole loses no rank. Default: 10.
    pub heartbeats_until_lost: u32,
    /// A secret of all ranks: a process that does not know it is refused. `TINDERBOX_TOKEN`. It is sent unencrypted: use it
    /// on a network that you trust, or together with TLS.
    #[debug("{:?}", token.as_ref().map(|_| "..."))]
    pub token: Option<String>,
    /// A directory with `ca.pem`, `cert.pem` and `key.pem`: connections are encrypted, and both sides show a certificate
    /// of this authority. `TINDERBOX_TLS`.
    pub tls: Option<PathBuf>,
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
        }
    }
}

impl WorldOptions {
    /// Reads the variables that the fields name; other settings have their defaults.
    ///
    /// # Errors
    ///
    /// When a variable is not a number, or the token is not UTF-8.
    pub fn from_env() -> Result<Self, EnvironmentError> {
        Self::read(|name| std::env::var_os(name))
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, EnvironmentError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let time = |name: &str, unit: fn(u64) -> Duration, default: Duration| {
            let Some(value) = variable(name) else {
                return Ok(default);
            };
            let (name, value) = (name.to_owned(), value.to_string_lossy().into_owned());
            match value.parse() {
                Ok(number) if number > 0 => Ok(unit(number)),
                _ => Err(EnvironmentError::NotANumber { name, value }),
            }
        };
        let name = "TINDERBOX_TOKEN".to_owned();
        let token = variable(&name).map(OsString::into_string).transpose();
        let token = token.map_err(|_| EnvironmentError::NotText { name })?;
        let (seconds, millis) = (Duration::from_secs, Duration::from_millis);
        let defaults = Self::default();
        let (join, call) = (defaults.join_timeout, defaults.call_timeout);
        Ok(Self {
            join_timeout: time("TINDERBOX_JOIN_TIMEOUT_S", seconds, join)?,
            call_timeout: time("TINDERBOX_CALL_TIMEOUT_S", seconds, call)?,
            heartbeat: time("TINDERBOX_HEARTBEAT_MS", millis, defaults.heartbeat)?,
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

    /// A variable that is not UTF-8 does not count as unset: connections would not be encrypted.
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
