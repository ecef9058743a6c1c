//! The settings of a world.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::EnvironmentError;
use crate::frame::Limits;

/// The settings of a world. All ranks have the same.
#[derive(Clone)]
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
    /// When a variable is no number.
    pub fn from_env() -> Result<Self, EnvironmentError> {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let number = |name: &str| -> Result<Option<u64>, EnvironmentError> {
            let Some(value) = variable(name) else {
                return Ok(None);
            };
            match value.parse() {
                Ok(number) if number > 0 => Ok(Some(number)),
                _ => Err(EnvironmentError::NotANumber {
                    name: name.to_owned(),
                    value,
                }),
            }
        };
        let defaults = Self::default();
        let seconds = number("TINDERBOX_JOIN_TIMEOUT_S")?.map(Duration::from_secs);
        let call = number("TINDERBOX_CALL_TIMEOUT_S")?.map(Duration::from_secs);
        let beat = number("TINDERBOX_HEARTBEAT_MS")?.map(Duration::from_millis);
        Ok(Self {
            join_timeout: seconds.unwrap_or(defaults.join_timeout),
            call_timeout: call.unwrap_or(defaults.call_timeout),
            heartbeat: beat.unwrap_or(defaults.heartbeat),
            token: variable("TINDERBOX_TOKEN"),
            tls: variable("TINDERBOX_TLS").map(PathBuf::from),
            ..defaults
        })
    }
}

impl fmt::Debug for WorldOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorldOptions")
            .field("join_timeout", &self.join_timeout)
            .field("call_timeout", &self.call_timeout)
            .field("heartbeat", &self.heartbeat)
            .field("heartbeats_until_lost", &self.heartbeats_until_lost)
            // Not the secret.
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("tls", &self.tls)
            .field("limits", &self.limits)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_replace_the_defaults() {
        let read = |name: &str, value: &str| {
            WorldOptions::read(|known| (known == name).then(|| value.to_owned()))
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
}
