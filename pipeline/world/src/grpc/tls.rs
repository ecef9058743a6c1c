//! Encrypted connections on which both sides show a certificate.

use std::fs;
use std::path::Path;

use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

use crate::error::WorldError;

/// The name that every certificate has: addresses are not known when certificates are made.
const NAME: &str = "tinderbox";

/// The files of a TLS directory.
pub(super) struct Tls {
    /// The authority of all certificates.
    root: Certificate,
    identity: Identity,
}

impl Tls {
    /// Reads `ca.pem`, `cert.pem` and `key.pem`.
    pub(super) fn read(dir: &Path) -> Result<Self, WorldError> {
        let read = |name: &str| {
            let file = dir.join(name);
            fs::read(&file).map_err(|source| WorldError::Tls {
                file: file.display().to_string(),
                source,
            })
        };
        let root = Certificate::from_pem(read("ca.pem")?);
        let identity = Identity::from_pem(read("cert.pem")?, read("key.pem")?);
        Ok(Self { root, identity })
    }

    pub(super) fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(self.identity.clone())
            .client_ca_root(self.root.clone())
    }

    pub(super) fn client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .domain_name(NAME)
            .ca_certificate(self.root.clone())
            .identity(self.identity.clone())
    }
}
