//! Certificates of files and folders, by the names inside them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::sign::SigningKey;
use zeroize::Zeroizing;

use crate::certificate::{Certificate, CertificateError, Sections, wildcard_of};

/// The most bytes of a file with certificates or a key.
const FILE_BYTES: u64 = 1 << 20;

/// Folders within folders that are read: certbot has one for each certificate.
const DEPTH: usize = 3;

/// A file or folder with certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file with chain and key, or a folder with such files, or with chains and keys in files of their own.
    Path(PathBuf),
    /// A chain and its key in two files.
    Pair {
        /// The chain, the server's own certificate first.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
}

/// A file that cannot be used, and the reason.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// Check the path and its permissions.
    #[error("cannot read `{path}`: {source}", path = .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Correct the file.
    #[error("`{path}`: {source}", path = .path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: CertificateError,
    },
    /// Put certificates there.
    #[error("`{path}` has no certificate: expected files such as site.pem with a chain and its key", path = .0.display())]
    Empty(PathBuf),
}

/// Certificates by name.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// By name and by wildcard.
    by_name: HashMap<Box<str>, Arc<FiledCertificate>>,
    all: Vec<Arc<FiledCertificate>>,
}

/// A certificate and its file.
#[derive(Debug)]
pub(crate) struct FiledCertificate {
    pub(crate) certificate: Arc<Certificate>,
    pub(crate) file: PathBuf,
}

impl Catalogue {
    /// Reads files and folders. If several certificates have a name, the one that is valid for longest serves it.
    ///
    /// # Errors
    /// All files that cannot be used.
    pub fn read(sources: &[Source]) -> Result<Self, Vec<CatalogueError>> {
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for source in sources {
            let read = match source {
                Source::Path(path) if path.is_dir() => folder(path, &mut found),
                Source::Path(path) => file(path, &mut found),
                Source::Pair { certificate, key } => pair(certificate, key, &mut found),
            };
            errors.extend(read.err().into_iter().flatten());
        }
        if errors.is_empty() { Ok(Catalogue::of(found)) } else { Err(errors) }
    }

    fn of(found: Vec<FiledCertificate>) -> Self {
        let mut catalogue = Catalogue::default();
        for filed in found {
            let filed = Arc::new(filed);
            for name in filed.certificate.names() {
                let rank = |one: &FiledCertificate| (one.certificate.not_after(), one.certificate.chain_length());
                match catalogue.by_name.get_mut(name) {
                    Some(known) if rank(known) >= rank(&filed) => {}
                    Some(known) => *known = Arc::clone(&filed),
                    None => drop(catalogue.by_name.insert(name.into(), Arc::clone(&filed))),
                }
            }
            catalogue.all.push(filed);
        }
        catalogue
    }

    /// Returns the certificate of a name in lower case, and its file.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<(&Arc<Certificate>, &Path)> {
        let filed = self.by_name.get(name).or_else(|| self.by_name.get(wildcard_of(name)?.as_str()))?;
        Some((&filed.certificate, &filed.file))
    }

    /// Iterates over all certificates and their files.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<Certificate>, &Path)> {
        self.all.iter().map(|filed| (&filed.certificate, &*filed.file))
    }

    pub(crate) fn by_name(&self) -> impl Iterator<Item = (&str, &Arc<Certificate>)> {
        self.by_name.iter().map(|(name, filed)| (&**name, &filed.certificate))
    }
}

fn text(path: &Path) -> Result<Zeroizing<Vec<u8>>, CatalogueError> {
    let failed = |source| CatalogueError::Read { path: path.to_owned(), source };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > FILE_BYTES {
        return Err(failed(io::Error::other(format!("it has {length} bytes of at most {FILE_BYTES}"))));
    }
    fs::read(path).map(Zeroizing::new).map_err(failed)
}

fn sections(path: &Path) -> Result<Sections, CatalogueError> {
    Sections::read(&text(path)?).map_err(|source| CatalogueError::Certificate { path: path.to_owned(), source })
}

fn file(path: &Path, found: &mut Vec<FiledCertificate>) -> Result<(), Vec<CatalogueError>> {
    let wrong = |source| CatalogueError::Certificate { path: path.to_owned(), source };
    let read = text(path).and_then(|text| Certificate::from_pem(&text).map_err(wrong));
    let certificate = read.map_err(|error| vec![error])?;
    found.push(FiledCertificate { certificate: Arc::new(certificate), file: path.to_owned() });
    Ok(())
}

fn pair(chain: &Path, key: &Path, found: &mut Vec<FiledCertificate>) -> Result<(), Vec<CatalogueError>> {
    let read = || {
        let (chain_sections, mut keys) = (sections(chain)?, sections(key)?.keys);
        let wrong = |path: &Path, source| CatalogueError::Certificate { path: path.to_owned(), source };
        match keys.len() {
            0 => return Err(wrong(key, CertificateError::NoKey)),
            1 => {}
            count => return Err(wrong(key, CertificateError::Keys(count))),
        }
        Certificate::new(chain_sections.chain, keys.remove(0)).map_err(|source| wrong(chain, source))
    };
    let certificate = read().map_err(|error| vec![error])?;
    found.push(FiledCertificate { certificate: Arc::new(certificate), file: chain.to_owned() });
    Ok(())
}

/// Reads a folder: each chain gets the key that belongs to it, whatever the names of the files.
fn folder(path: &Path, found: &mut Vec<FiledCertificate>) -> Result<(), Vec<CatalogueError>> {
    let (mut chains, mut keys, mut errors) = (Vec::new(), HashMap::new(), Vec::new());
    let mut files = Vec::new();
    if let Err(error) = walk(path, DEPTH, &mut files) {
        return Err(vec![error]);
    }
    files.sort();
    for file in files {
        match sections(&file) {
            Ok(Sections { chain, keys: own }) => {
                for key in own {
                    if let Some(public) = key.public_key() {
                        keys.insert(public.as_ref().to_vec(), key);
                    }
                }
                if !chain.is_empty() {
                    chains.push((file, chain));
                }
            }
            Err(error) => errors.push(error),
        }
    }
    let before = found.len();
    for (file, chain) in chains {
        let key: Option<Arc<dyn SigningKey>> = public_key(&chain[0]).and_then(|public| keys.get(&public).cloned());
        let made = match key {
            Some(key) => Certificate::new(chain, key),
            // The intermediates alone, as certbot's chain.pem has them.
            None if is_authority(&chain[0]) => continue,
            None => Err(CertificateError::NoKey),
        };
        match made {
            Ok(certificate) => found.push(FiledCertificate { certificate: Arc::new(certificate), file }),
            Err(source) => errors.push(CatalogueError::Certificate { path: file, source }),
        }
    }
    if found.len() == before && errors.is_empty() {
        errors.push(CatalogueError::Empty(path.to_owned()));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Collects the files of a folder that may have certificates or keys.
fn walk(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), CatalogueError> {
    let failed = |source| CatalogueError::Read { path: path.to_owned(), source };
    for entry in fs::read_dir(path).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            if depth > 1 {
                walk(&path, depth - 1, files)?;
            }
            continue;
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("pem" | "crt" | "cer" | "key")) {
            files.push(path);
        }
    }
    Ok(())
}

fn public_key(certificate: &[u8]) -> Option<Vec<u8>> {
    use x509_parser::prelude::{FromDer, X509Certificate};
    X509Certificate::from_der(certificate).ok().map(|(_, parsed)| parsed.public_key().raw.to_vec())
}

fn is_authority(certificate: &[u8]) -> bool {
    use x509_parser::prelude::{FromDer, X509Certificate};
    X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| parsed.is_ca())
}
