//! An in-memory store that fails on demand, and keeps any subset of unsynced changes at a power failure.
//!
//! Changes of names in directories that concern the same names are kept in order, and independently of all
//! others, until the directory is synced: one creation, removal, rename or exchange is one change. An
//! unsynced file has its former contents, all of the new ones, half of them, or zeros.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use tinderbox_checkpoint::store::{Found, FoundKind, Lock, ReadFile, Store, WriteFile};

/// A fault at one of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails, later ones do not.
    Once(u64),
    /// The operation and all later ones fail.
    From(u64),
    /// The power fails before the operation.
    PowerLoss(u64),
}

/// A name in a directory.
type Name = (usize, String);

/// The effect of one operation on names: the node that each name then refers to.
type Change = Vec<(Name, Option<usize>)>;

#[derive(Clone, Debug)]
enum Node {
    File {
        bytes: Vec<u8>,
        /// The state that a sync has made durable.
        synced: Vec<u8>,
    },
    Dir {
        names: BTreeMap<String, usize>,
        synced: BTreeMap<String, usize>,
    },
}

#[derive(Clone, Debug)]
struct Disk {
    /// The root is the first node, once it is created.
    nodes: Vec<Node>,
    /// Unsynced changes of names, in order.
    pending: Vec<Change>,
    locked: BTreeSet<usize>,
    operations: u64,
    bytes_read: u64,
    fault: Option<Fault>,
    /// The error kind of a fault.
    kind: ErrorKind,
    /// The disk at the power failure.
    lost: Option<Box<Disk>>,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            pending: Vec::new(),
            locked: BTreeSet::new(),
            operations: 0,
            bytes_read: 0,
            fault: None,
            kind: ErrorKind::StorageFull,
            lost: None,
        }
    }
}

/// The store. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Volatile(Arc<Mutex<Disk>>);

impl Volatile {
    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.disk().operations
    }

    /// Returns the number of bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.disk().bytes_read
    }

    /// Sets the fault, counted from the next operation.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut disk = self.disk();
        (disk.operations, disk.fault) = (0, fault);
    }

    /// Sets the error kind of faults; the default is a full disk.
    pub fn set_kind(&self, kind: ErrorKind) {
        self.disk().kind = kind;
    }

    /// Returns the store after the power failure, without unsynced changes. If the power has not failed, it
    /// fails now.
    pub fn after_power_loss(&self) -> Self {
        self.at_loss().durable(&mut |_| 0)
    }

    /// Returns the store with subsets of unsynced changes: all possible ones, or `most` of them, drawn with a
    /// seed. The first subset is empty and the second complete.
    pub fn after_power_losses(&self, most: usize, seed: u64) -> Vec<Self> {
        let disk = self.at_loss();
        let mut limits = Vec::new();
        let nothing = disk.durable(&mut |limit| {
            limits.push(limit);
            0
        });
        let possible = limits
            .iter()
            .try_fold(1_usize, |n, limit| n.checked_mul(*limit));
        let all = |at: usize| {
            let mut at = at;
            disk.durable(&mut |limit| {
                let choice = at % limit;
                at /= limit;
                choice
            })
        };
        if let Some(possible) = possible.filter(|possible| *possible <= most) {
            return (0..possible).map(all).collect();
        }
        let mut random = super::Random(seed);
        let drawn = (2..most).map(|_| disk.durable(&mut |limit| random.next() as usize % limit));
        let everything = disk.durable(&mut |limit| limit - 1);
        [nothing, everything].into_iter().chain(drawn).collect()
    }

    fn at_loss(&self) -> Disk {
        let disk = self.disk();
        disk.lost.as_deref().unwrap_or(&disk).clone()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    /// Counts an operation; fails it if the fault applies to it.
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
                    disk.lost = Some(Box::new(disk.clone()));
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
    /// Returns the state after a power failure. Each choice is an index; 0 keeps nothing, the last keeps all.
    fn durable(&self, choose: &mut dyn FnMut(usize) -> usize) -> Volatile {
        let mut nodes: Vec<Node> = Vec::new();
        for node in &self.nodes {
            nodes.push(match node {
                Node::File { bytes, synced } if bytes == synced => node.clone(),
                Node::File { bytes, synced } => {
                    let left = match choose(4) {
                        0 => synced.clone(),
                        1 => bytes[..bytes.len() / 2].to_vec(),
                        2 => vec![0; bytes.len()],
                        _ => bytes.clone(),
                    };
                    new_file(&left, &left)
                }
                Node::Dir { synced, .. } => Node::Dir {
                    names: synced.clone(),
                    synced: synced.clone(),
                },
            });
        }
        for changes in self.independent() {
            let kept = choose(changes.len() + 1);
            for ((dir, name), node) in changes[..kept].iter().copied().flatten() {
                let Node::Dir { names, synced } = &mut nodes[*dir] else {
                    panic!("a name in a file");
                };
                for names in [names, synced] {
                    match node {
                        Some(node) => names.insert(name.clone(), *node),
                        None => names.remove(name),
                    };
                }
            }
        }
        Volatile(Arc::new(Mutex::new(Disk {
            nodes,
            ..Disk::default()
        })))
    }

    /// Returns the unsynced changes; the changes in one list concern the same names, directly or transitively.
    fn independent(&self) -> Vec<Vec<&Change>> {
        let mut lists: Vec<(BTreeSet<&Name>, Vec<usize>)> = Vec::new();
        for (number, change) in self.pending.iter().enumerate() {
            let mut names: BTreeSet<_> = change.iter().map(|(name, _)| name).collect();
            let mut numbers = vec![number];
            lists.retain_mut(|(others, earlier)| {
                let same = others.intersection(&names).next().is_some();
                if same {
                    names.append(others);
                    numbers.append(earlier);
                }
                !same
            });
            lists.push((names, numbers));
        }
        let in_order = lists.into_iter().map(|(_, mut numbers)| {
            numbers.sort_unstable();
            numbers.into_iter().map(|at| &self.pending[at]).collect()
        });
        in_order.collect()
    }

    /// Changes names.
    fn change(&mut self, change: Change) {
        for ((dir, name), node) in &change {
            match node {
                Some(node) => self.names_mut(*dir).insert(name.clone(), *node),
                None => self.names_mut(*dir).remove(name),
            };
        }
        self.pending.push(change);
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

    /// Returns the directory of a path, and its last name.
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
        self.change(vec![((dir, name), Some(new))]);
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
        self.change(vec![((dir, name), None)]);
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

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let mut disk = self.operate()?;
        if !path.is_empty() {
            return disk.add(path, new_dir()).map(drop);
        }
        if disk.nodes.is_empty() {
            disk.nodes.push(new_dir());
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.operate()?;
        let ((from_dir, from_name), (to_dir, to_name)) = (disk.place(from)?, disk.place(to)?);
        let node = disk.find(from)?;
        let is_dir = matches!(disk.nodes[node], Node::Dir { .. });
        if is_dir && disk.names(to_dir)?.contains_key(&to_name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        disk.change(vec![
            ((from_dir, from_name), None),
            ((to_dir, to_name), Some(node)),
        ]);
        Ok(())
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        let mut disk = self.operate()?;
        let places = [disk.place(one)?, disk.place(other)?];
        let nodes = [disk.find(one)?, disk.find(other)?];
        let [(one_dir, one), (other_dir, other)] = places;
        disk.change(vec![
            ((one_dir, one), Some(nodes[1])),
            ((other_dir, other), Some(nodes[0])),
        ]);
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
        disk.pending
            .retain(|change| change.iter().all(|((changed, _), _)| *changed != dir));
        Ok(())
    }

    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock> {
        let mut disk = self.operate()?;
        let node = disk.add(path, new_file(bytes, bytes))?;
        disk.locked.insert(node);
        Ok(Lock::of(Locked(self.clone(), node)))
    }

    fn try_lock(&self, path: &str) -> io::Result<Option<Lock>> {
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
        modified: None,
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
