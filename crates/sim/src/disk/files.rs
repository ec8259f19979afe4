//! The simulated file system: directories, files, space.
//!
//! Every directory has the names that the running system sees and those that a power cut leaves. Between them stand the
//! unsynced changes, in order. A change survives only where every earlier one of its directories did; a rename is one change
//! of two directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Component, Path, PathBuf},
};

use bytes::Bytes;
use tidelog_runtime::{DirEntry, DiskSpace, OpenMode, Rng, SeededRng};

use super::content::Content;

/// The root directory's inode.
const ROOT: u64 = 0;

/// What a disk without a capacity reports as its size.
const TOTAL_BYTES: u64 = 1 << 40;

#[derive(Debug, Clone)]
pub(super) struct Files {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    unsynced: Vec<Change>,
    /// How many handles each open file has.
    open: BTreeMap<u64, usize>,
    capacity: Option<u64>,
    tears: bool,
    rng: SeededRng,
}

#[derive(Debug, Clone)]
enum Inode {
    Directory { live: Names, durable: Names },
    File(Content),
}

type Names = BTreeMap<String, u64>;

/// One atomic change of names.
type Change = Vec<NameChange>;

#[derive(Debug, Clone)]
struct NameChange {
    directory: u64,
    name: String,
    target: Option<u64>,
}

impl Files {
    pub(super) fn new(rng: SeededRng, capacity: Option<u64>, tears: bool) -> Self {
        let root = Inode::Directory { live: Names::new(), durable: Names::new() };
        let inodes = BTreeMap::from([(ROOT, root)]);
        Self {
            inodes,
            next_inode: ROOT + 1,
            unsynced: Vec::new(),
            open: BTreeMap::new(),
            capacity,
            tears,
            rng,
        }
    }

    /// The same files for another life, with random numbers of its own.
    pub(super) fn reborn(&self) -> Self {
        let mut files = self.clone();
        files.rng = self.rng.fork();
        files.open.clear();
        files.forget_unreachable();
        files
    }

    pub(super) fn set_capacity(&mut self, capacity: Option<u64>) {
        self.capacity = capacity;
    }

    pub(super) fn open_count(&self) -> usize {
        self.open.values().sum()
    }

    pub(super) fn open(&mut self, path: &Path, mode: OpenMode) -> io::Result<u64> {
        let (directory, name) = self.parent_of(path)?;
        let found = self.names(directory)?.get(&name).copied();
        if found.is_some_and(|inode| matches!(self.inodes.get(&inode), Some(Inode::Directory { .. }))) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let inode = match (mode, found) {
            (OpenMode::Read | OpenMode::ReadWrite, Some(inode)) => inode,
            (OpenMode::Read | OpenMode::ReadWrite, None) => return Err(io::ErrorKind::NotFound.into()),
            (OpenMode::CreateNew, Some(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (OpenMode::CreateOrTruncate, Some(inode)) => {
                self.content(inode)?.set_len(0)?;
                inode
            }
            (OpenMode::CreateNew | OpenMode::CreateOrTruncate, None) => {
                let inode = self.add(Inode::File(Content::default()));
                self.change(vec![NameChange { directory, name, target: Some(inode) }]);
                inode
            }
        };
        *self.open.entry(inode).or_default() += 1;
        Ok(inode)
    }

    pub(super) fn close(&mut self, inode: u64) {
        if let Some(count) = self.open.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&inode);
            }
        }
    }

    /// A file's bytes, whatever its name is by now.
    pub(super) fn content(&mut self, inode: u64) -> io::Result<&mut Content> {
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(content)) => Ok(content),
            Some(Inode::Directory { .. }) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::StaleNetworkFileHandle.into()),
        }
    }

    pub(super) fn content_at(&mut self, path: &Path) -> io::Result<&mut Content> {
        let inode = self.find(path)?;
        self.content(inode)
    }

    pub(super) fn write(&mut self, inode: u64, position: u64, bytes: Bytes) -> io::Result<()> {
        let growth = self.content(inode)?.growth(position, bytes.len())?;
        let room = self.room();
        if growth <= room {
            return self.content(inode)?.write(position, bytes);
        }
        // As much as fits is there, as after a short write whose rest failed.
        let fits = bytes.len().saturating_sub(growth - room);
        self.content(inode)?.write(position, bytes.slice(..fits))?;
        Err(io::ErrorKind::StorageFull.into())
    }

    pub(super) fn allocate(&mut self, inode: u64, length: u64) -> io::Result<()> {
        let growth = self.content(inode)?.growth(length, 0)?;
        if growth > self.room() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.content(inode)?.allocate(length)
    }

    pub(super) fn fail_write(&mut self, inode: u64, position: u64, bytes: &Bytes) -> io::Result<()> {
        let part = usize::try_from(self.rng.below(bytes.len() as u64 + 1)).unwrap_or(0);
        self.write(inode, position, bytes.slice(..part))
    }

    pub(super) fn fail_sync(&mut self, inode: u64) -> io::Result<()> {
        let (rng, tears) = (self.rng.clone(), self.tears);
        self.content(inode)?.fail_sync(&rng, tears);
        Ok(())
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut directory = ROOT;
        for name in components(path)? {
            directory = match self.names(directory)?.get(&name).copied() {
                Some(inode) => {
                    self.names(inode).map_err(|_| io::ErrorKind::NotADirectory)?;
                    inode
                }
                None => {
                    let inode = self.add(Inode::Directory { live: Names::new(), durable: Names::new() });
                    self.change(vec![NameChange { directory, name, target: Some(inode) }]);
                    inode
                }
            };
        }
        Ok(())
    }

    /// Makes a directory's names durable, and whatever came before them in the other directory of a rename.
    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        self.names(inode)?;
        let mut wanted = BTreeSet::from([inode]);
        let mut synced = Vec::new();
        for (index, change) in self.unsynced.iter().enumerate().rev() {
            if change.iter().any(|part| wanted.contains(&part.directory)) {
                wanted.extend(change.iter().map(|part| part.directory));
                synced.push(index);
            }
        }
        // `synced` descends, so that removing leaves the smaller indexes in place.
        let mut changes: Vec<Change> = synced.into_iter().map(|index| self.unsynced.remove(index)).collect();
        while let Some(change) = changes.pop() {
            self.make_durable(change);
        }
        self.forget_unreachable();
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let inode = self.find(from)?;
        let (from_directory, from_name) = self.parent_of(from)?;
        let (to_directory, to_name) = self.parent_of(to)?;
        let moves_directory = self.names(inode).is_ok();
        match self.names(to_directory)?.get(&to_name).copied() {
            Some(target) if target == inode => return Ok(()),
            Some(target) => match (moves_directory, self.names(target)) {
                (false, Ok(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                (true, Err(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                (true, Ok(names)) if !names.is_empty() => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
                _ => {}
            },
            None => {}
        }
        self.change(vec![
            NameChange { directory: from_directory, name: from_name, target: None },
            NameChange { directory: to_directory, name: to_name, target: Some(inode) },
        ]);
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        self.content(inode)?;
        let (directory, name) = self.parent_of(path)?;
        self.change(vec![NameChange { directory, name, target: None }]);
        Ok(())
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let inode = match self.find(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        self.names(inode)?;
        let (directory, name) = self.parent_of(path)?;
        self.empty(inode)?;
        self.change(vec![NameChange { directory, name, target: None }]);
        Ok(())
    }

    pub(super) fn list_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let names = self.names(self.find(path)?)?;
        Ok(names
            .iter()
            .map(|(name, inode)| match self.inodes.get(inode) {
                Some(Inode::File(content)) => {
                    DirEntry { name: name.clone(), is_dir: false, length: content.live().len() as u64 }
                }
                _ => DirEntry { name: name.clone(), is_dir: true, length: 0 },
            })
            .collect())
    }

    pub(super) fn space(&self) -> DiskSpace {
        let total = self.capacity.unwrap_or(TOTAL_BYTES);
        DiskSpace { total, free: total.saturating_sub(self.used()) }
    }

    /// Every file's path, in order.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let mut directories = vec![(PathBuf::from("/"), ROOT)];
        while let Some((path, directory)) = directories.pop() {
            for (name, inode) in self.names(directory).into_iter().flatten() {
                match self.inodes.get(inode) {
                    Some(Inode::Directory { .. }) => directories.push((path.join(name), *inode)),
                    _ => paths.push(path.join(name)),
                }
            }
        }
        paths.sort();
        paths
    }

    /// Leaves what a power cut leaves.
    pub(super) fn power_cut(&mut self) {
        let rng = self.rng.clone();
        let mut stopped: BTreeSet<u64> = BTreeSet::new();
        for change in std::mem::take(&mut self.unsynced) {
            if change.iter().any(|part| stopped.contains(&part.directory)) || rng.chance(1, 2) {
                stopped.extend(change.iter().map(|part| part.directory));
            } else {
                self.make_durable(change);
            }
        }
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::Directory { live, durable } => live.clone_from(durable),
                Inode::File(content) => content.power_cut(&rng, self.tears),
            }
        }
        self.open.clear();
        self.forget_unreachable();
    }

    fn room(&self) -> usize {
        self.capacity.map_or(usize::MAX, |capacity| {
            usize::try_from(capacity.saturating_sub(self.used())).unwrap_or(usize::MAX)
        })
    }

    fn used(&self) -> u64 {
        let mut counted = self.reachable(|live, _| live);
        counted.extend(self.open.keys());
        let allocated = counted.iter().map(|inode| match self.inodes.get(inode) {
            Some(Inode::File(content)) => content.allocated() as u64,
            _ => 0,
        });
        allocated.sum()
    }

    fn reachable(&self, names: for<'a> fn(&'a Names, &'a Names) -> &'a Names) -> BTreeSet<u64> {
        let mut reached = BTreeSet::from([ROOT]);
        let mut unvisited = vec![ROOT];
        while let Some(inode) = unvisited.pop() {
            if let Some(Inode::Directory { live, durable }) = self.inodes.get(&inode) {
                unvisited.extend(names(live, durable).values().filter(|child| reached.insert(**child)));
            }
        }
        reached
    }

    /// Drops what no name, no unsynced change and no handle leads to.
    fn forget_unreachable(&mut self) {
        let mut kept = BTreeSet::from([ROOT]);
        kept.extend(self.open.keys());
        for part in self.unsynced.iter().flatten() {
            kept.extend(part.target);
            kept.insert(part.directory);
        }
        // A directory whose own name is not durable yet may hold durable names: a power cut may keep both.
        let mut unvisited: Vec<u64> = kept.iter().copied().collect();
        while let Some(inode) = unvisited.pop() {
            if let Some(Inode::Directory { live, durable }) = self.inodes.get(&inode) {
                unvisited.extend(live.values().chain(durable.values()).filter(|child| kept.insert(**child)));
            }
        }
        self.inodes.retain(|inode, _| kept.contains(inode));
    }

    fn add(&mut self, inode: Inode) -> u64 {
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, inode);
        id
    }

    /// Removes everything in a directory, each name in a change of its own.
    fn empty(&mut self, directory: u64) -> io::Result<()> {
        for (name, child) in self.names(directory)?.clone() {
            if self.names(child).is_ok() {
                self.empty(child)?;
            }
            self.change(vec![NameChange { directory, name, target: None }]);
        }
        Ok(())
    }

    fn change(&mut self, change: Change) {
        for part in &change {
            if let Some(Inode::Directory { live, .. }) = self.inodes.get_mut(&part.directory) {
                set(live, part);
            }
        }
        self.unsynced.push(change);
    }

    fn make_durable(&mut self, change: Change) {
        for part in change {
            if let Some(Inode::Directory { durable, .. }) = self.inodes.get_mut(&part.directory) {
                set(durable, &part);
            }
        }
    }

    fn names(&self, inode: u64) -> io::Result<&Names> {
        match self.inodes.get(&inode) {
            Some(Inode::Directory { live, .. }) => Ok(live),
            Some(Inode::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        let mut inode = ROOT;
        for name in components(path)? {
            inode = *self.names(inode)?.get(&name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(inode)
    }

    fn parent_of(&self, path: &Path) -> io::Result<(u64, String)> {
        let mut names = components(path)?;
        let name = names.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let mut directory = ROOT;
        for name in names {
            directory = *self.names(directory)?.get(&name).ok_or(io::ErrorKind::NotFound)?;
        }
        self.names(directory)?;
        Ok((directory, name))
    }
}

fn set(names: &mut Names, change: &NameChange) {
    match change.target {
        Some(inode) => names.insert(change.name.clone(), inode),
        None => names.remove(&change.name),
    };
}

/// The names on the way to `path`; relative paths begin at the root.
fn components(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_string_lossy().into_owned()),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}
