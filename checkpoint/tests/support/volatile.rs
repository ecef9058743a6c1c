//! A store in memory that fails when it is told to, and forgets at a loss of power all that was not
//! synced: the contents of files, and the names in directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use tinderbox_checkpoint::store::{Found, FoundKind, Lock, ReadFile, Store, WriteFile};

/// What happens at one of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, later ones do not.
    Once(u64),
    /// It fails, and all after it.
    From(u64),
    /// The power is lost before it.
    PowerLoss(u64),
}

#[derive(Clone, Debug)]
enum Node {
    File {
        bytes: Vec<u8>,
        /// What a sync has made durable; without one a file is empty after a loss of power.
        synced: Vec<u8>,
    },
    Dir {
        names: BTreeMap<String, usize>,
        synced: BTreeMap<String, usize>,
    },
}

#[derive(Clone, Debug)]
struct Disk {
    /// The root is the first, once it was made.
    nodes: Vec<Node>,
    locked: BTreeSet<usize>,
    operations: u64,
    bytes_read: u64,
    fault: Option<Fault>,
    /// What a fault says.
    kind: ErrorKind,
    /// What is left after a loss of power.
    left: Option<Vec<Node>>,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            locked: BTreeSet::new(),
            operations: 0,
            bytes_read: 0,
            fault: None,
            kind: ErrorKind::StorageFull,
            left: None,
        }
    }
}

/// The store. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Volatile(Arc<Mutex<Disk>>);

impl Volatile {
    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.disk().operations
    }

    /// Bytes that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.disk().bytes_read
    }

    /// From now on, counted from the next operation.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut disk = self.disk();
        (disk.operations, disk.fault) = (0, fault);
    }

    /// What faults say from now on; that the disk is full, unless chosen.
    pub fn set_kind(&self, kind: ErrorKind) {
        self.disk().kind = kind;
    }

    /// The same store after the power came back. Without a loss before, the power is lost now.
    pub fn after_power_loss(&self) -> Self {
        let disk = self.disk();
        let nodes = disk.left.clone().unwrap_or_else(|| disk.durable());
        Self(Arc::new(Mutex::new(Disk {
            nodes,
            ..Disk::default()
        })))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    /// Counts an operation; fails it when its time has come.
    fn operate(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let mut disk = self.disk();
        disk.operations += 1;
        let now = disk.operations;
        let failed = match disk.fault {
            None => false,
            Some(Fault::Once(at)) => now == at,
            Some(Fault::From(at)) => now >= at,
            Some(Fault::PowerLoss(at)) => {
                if now == at {
                    disk.left = Some(disk.durable());
                }
                now >= at
            }
        };
        match failed {
            true => Err(io::Error::from(disk.kind)),
            false => Ok(disk),
        }
    }
}

impl Disk {
    /// All that was synced.
    fn durable(&self) -> Vec<Node> {
        let forget = |node: &Node| match node {
            Node::File { synced, .. } => Node::File {
                bytes: synced.clone(),
                synced: synced.clone(),
            },
            Node::Dir { synced, .. } => Node::Dir {
                names: synced.clone(),
                synced: synced.clone(),
            },
        };
        self.nodes.iter().map(forget).collect()
    }

    fn names(&self, dir: usize) -> io::Result<&BTreeMap<String, usize>> {
        match self.nodes.get(dir) {
            Some(Node::Dir { names, .. }) => Ok(names),
            Some(Node::File { .. }) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn names_mut(&mut self, dir: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.nodes[dir] {
            Node::Dir { names, .. } => names,
            Node::File { .. } => panic!("looked up as a directory"),
        }
    }

    fn find(&self, path: &str) -> io::Result<usize> {
        let names = path.split('/').filter(|name| !name.is_empty());
        let start = self.names(0).map(|_| 0);
        names.fold(start, |dir, name| {
            let found = self.names(dir?)?.get(name).copied();
            found.ok_or_else(|| ErrorKind::NotFound.into())
        })
    }

    /// The directory of a path, and its last name.
    fn place(&self, path: &str) -> io::Result<(usize, String)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.find(dir)?;
        self.names(dir)?;
        Ok((dir, name.to_owned()))
    }

    fn add(&mut self, path: &str, node: Node) -> io::Result<usize> {
        let (dir, name) = self.place(path)?;
        if self.names(dir)?.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.nodes.push(node);
        let new = self.nodes.len() - 1;
        self.names_mut(dir).insert(name, new);
        Ok(new)
    }

    fn remove(&mut self, path: &str, is_dir: bool) -> io::Result<()> {
        let (dir, name) = self.place(path)?;
        let node = self.find(path)?;
        match &self.nodes[node] {
            Node::Dir { names, .. } if is_dir && !names.is_empty() => {
                return Err(ErrorKind::DirectoryNotEmpty.into());
            }
            Node::Dir { .. } if !is_dir => return Err(ErrorKind::IsADirectory.into()),
            Node::File { .. } if is_dir => return Err(ErrorKind::NotADirectory.into()),
            _ => {}
        }
        self.names_mut(dir).remove(&name);
        Ok(())
    }
}

fn new_dir() -> Node {
    Node::Dir {
        names: BTreeMap::new(),
        synced: BTreeMap::new(),
    }
}

fn new_file(bytes: &[u8], synced: &[u8]) -> Node {
    Node::File {
        bytes: bytes.to_vec(),
        synced: synced.to_vec(),
    }
}

impl Store for Volatile {
    fn place(&self, path: &str) -> PathBuf {
        PathBuf::from("/volatile").join(path)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        let disk = self.operate()?;
        let names = disk.names(disk.find(dir)?)?;
        Ok(names
            .iter()
            .map(|(name, node)| found(name, &disk.nodes[*node]))
            .collect())
    }

    fn look(&self, path: &str) -> io::Result<Found> {
        let disk = self.operate()?;
        let node = &disk.nodes[disk.find(path)?];
        Ok(found(path.rsplit('/').next().unwrap(), node))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        let disk = self.operate()?;
        let node = disk.find(path)?;
        match &disk.nodes[node] {
            Node::File { bytes, .. } => Ok(Box::new(Reading {
                store: self.clone(),
                node,
                bytes: bytes.len() as u64,
            })),
            Node::Dir { .. } => Err(ErrorKind::InvalidInput.into()),
        }
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>> {
        let node = self.operate()?.add(path, new_file(&[], &[]))?;
        Ok(Box::new(Writing {
            store: self.clone(),
            node,
        }))
    }

    fn create_root(&self) -> io::Result<()> {
        let mut disk = self.operate()?;
        if disk.nodes.is_empty() {
            disk.nodes.push(new_dir());
        }
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.operate()?.add(path, new_dir()).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.operate()?;
        let ((from_dir, from_name), (to_dir, to_name)) = (disk.place(from)?, disk.place(to)?);
        let node = disk.find(from)?;
        let is_dir = matches!(disk.nodes[node], Node::Dir { .. });
        if is_dir && disk.names(to_dir)?.contains_key(&to_name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        disk.names_mut(from_dir).remove(&from_name);
        disk.names_mut(to_dir).insert(to_name, node);
        Ok(())
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        let mut disk = self.operate()?;
        let places = [disk.place(one)?, disk.place(other)?];
        let nodes = [disk.find(one)?, disk.find(other)?];
        let [(one_dir, one), (other_dir, other)] = places;
        disk.names_mut(one_dir).insert(one, nodes[1]);
        disk.names_mut(other_dir).insert(other, nodes[0]);
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.operate()?.remove(path, false)
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.operate()?.remove(path, true)
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let mut disk = self.operate()?;
        let dir = disk.find(path)?;
        match &mut disk.nodes[dir] {
            Node::Dir { names, synced } => synced.clone_from(names),
            Node::File { .. } => return Err(ErrorKind::NotADirectory.into()),
        }
        Ok(())
    }

    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock> {
        let mut disk = self.operate()?;
        let node = disk.add(path, new_file(bytes, bytes))?;
        disk.locked.insert(node);
        Ok(Lock::of(Locked(self.clone(), node)))
    }

    fn try_lock(&self, path: &str, _shared: bool) -> io::Result<Option<Lock>> {
        let mut disk = self.operate()?;
        let node = disk.find(path)?;
        let free = disk.locked.insert(node);
        Ok(free.then(|| Lock::of(Locked(self.clone(), node))))
    }
}

fn found(name: &str, node: &Node) -> Found {
    let (kind, bytes) = match node {
        Node::File { bytes, .. } => (FoundKind::File, bytes.len() as u64),
        Node::Dir { .. } => (FoundKind::Dir, 0),
    };
    Found {
        name: name.to_owned(),
        kind,
        bytes,
    }
}

struct Locked(Volatile, usize);

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.disk().locked.remove(&self.1);
    }
}

#[derive(Debug)]
struct Reading {
    store: Volatile,
    node: usize,
    bytes: u64,
}

impl ReadFile for Reading {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()> {
        let mut disk = self.store.operate()?;
        disk.bytes_read += into.len() as u64;
        let Node::File { bytes, .. } = &disk.nodes[self.node] else {
            panic!("opened as a file");
        };
        let start = start as usize;
        let part = bytes.get(start..start + into.len());
        into.copy_from_slice(part.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[derive(Debug)]
struct Writing {
    store: Volatile,
    node: usize,
}

impl WriteFile for Writing {
    fn write_all(&mut self, more: &[u8]) -> io::Result<()> {
        let mut disk = self.store.operate()?;
        if let Node::File { bytes, .. } = &mut disk.nodes[self.node] {
            bytes.extend(more);
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        let mut disk = self.store.operate()?;
        if let Node::File { bytes, synced } = &mut disk.nodes[self.node] {
            synced.clone_from(bytes);
        }
        Ok(())
    }
}
