//! Models of links, which determine when a send waits for the receiver.

use std::num::{NonZeroU64, NonZeroUsize};
use std::str::FromStr;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A rule for when a send between two ranks waits, the same for all links of a step.
///
/// In every model a message is matched by its name ([`Message`](crate::Message)): a receive waits for its own
/// message, also if others were sent before. Serialized as text: `unbounded`, `messages:4`, `bytes:65536`, `rendezvous`,
/// `queue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Display)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum LinkModel {
    /// A send never waits: the link stores any number of messages, as the pipeline's own links do.
    #[default]
    #[display("unbounded")]
    Unbounded,
    /// A link from one rank to another stores this many messages; a send waits while it is full.
    #[display("messages:{_0}")]
    Messages(NonZeroUsize),
    /// A link from one rank to another stores this many bytes; a send waits until its message fits. The send of a larger
    /// message waits for its receive, as in a rendezvous, and for the receives of all messages before it.
    #[display("bytes:{_0}")]
    Bytes(NonZeroU64),
    /// A send waits until the receiver has reached the receive, as in `MPI_Ssend`, and in `MPI_Send` of large messages.
    #[display("rendezvous")]
    Rendezvous,
    /// Each of two ranks has one queue for its sends to the other rank and its receives from it. A message is transferred
    /// when it is at the front of both queues, as in an NCCL communicator. A send is queued without waiting.
    #[display("queue")]
    Queue,
}

impl LinkModel {
    /// Returns the model as a part of an error's sentence.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Unbounded => String::new(),
            Self::Messages(count) => format!(" over links that store {count} messages"),
            Self::Bytes(bytes) => format!(" over links that store {bytes} bytes"),
            Self::Rendezvous => " over links whose sends wait for the receive".to_owned(),
            Self::Queue => " over links with one queue per pair of ranks".to_owned(),
        }
    }
}

impl From<LinkModel> for String {
    fn from(model: LinkModel) -> Self {
        model.to_string()
    }
}

/// A text that names no link model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{text}` is no link model: use unbounded, messages:K, bytes:N (both at least 1), rendezvous or queue"
)]
pub struct LinkModelError {
    /// The text.
    pub text: String,
}

impl FromStr for LinkModel {
    type Err = LinkModelError;

    fn from_str(text: &str) -> Result<Self, LinkModelError> {
        let model = match (text, text.split_once(':')) {
            ("unbounded", _) => Some(Self::Unbounded),
            ("rendezvous", _) => Some(Self::Rendezvous),
            ("queue", _) => Some(Self::Queue),
            (_, Some(("messages", count))) => count.parse().ok().map(Self::Messages),
            (_, Some(("bytes", bytes))) => bytes.parse().ok().map(Self::Bytes),
            _ => None,
        };
        model.ok_or_else(|| LinkModelError {
            text: text.to_owned(),
        })
    }
}

impl TryFrom<String> for LinkModel {
    type Error = LinkModelError;

    fn try_from(text: String) -> Result<Self, LinkModelError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_read_back() {
        for text in [
            "unbounded",
            "messages:3",
            "bytes:4096",
            "rendezvous",
            "queue",
        ] {
            let model: LinkModel = text.parse().unwrap();
            assert_eq!(model.to_string(), text);
            let json = serde_json::to_string(&model).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<LinkModel>(&json).unwrap(), model);
        }
        for wrong in [
            "",
            "messages",
            "messages:0",
            "bytes:-1",
            "bytes:0",
            "queue:2",
            "Queue",
        ] {
            let error = wrong.parse::<LinkModel>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("`{wrong}` is no link model"))
            );
        }
    }
}
