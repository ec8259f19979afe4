//! What every disk promises, as a suite that every implementation runs.

use std::{io, path::Path, sync::Arc};

use bytes::Bytes;
use tidelog_runtime::{DirEntry, Disk, DiskFile, Lane, OpenMode};

const LANES: [Lane; 3] = [Lane::Journal, Lane::Read, Lane::Background];

/// Runs the suite in `root`, an existing empty directory.
///
/// # Panics
/// Where the disk breaks a promise.
pub async fn disk_contract(disk: Arc<dyn Disk>, root: &Path) {
    for lane in LANES {
        let folder = root.join(format!("{lane:?}"));
        disk.create_dir_all(&folder).await.expect("a new directory is made");
        reads_and_writes(&*disk, &folder, lane).await;
        lengths(&*disk, &folder, lane).await;
        open_modes(&*disk, &folder, lane).await;
        handles_outlive_names(&*disk, &folder, lane).await;
    }
    journal_order(&*disk, root).await;
    directories(&*disk, root).await;
    renames_and_removals(&*disk, root).await;
    space(&*disk, root).await;
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn kind<T>(outcome: io::Result<T>) -> io::ErrorKind {
    outcome.err().expect("the operation is refused").kind()
}

async fn create(disk: &dyn Disk, path: &Path, lane: Lane) -> Arc<dyn DiskFile> {
    disk.open(path, OpenMode::CreateNew, lane).await.expect("a new file is made")
}

async fn whole(file: &dyn DiskFile) -> Bytes {
    file.read_at(0, 1 << 20).await.expect("a file is read")
}

async fn reads_and_writes(disk: &dyn Disk, folder: &Path, lane: Lane) {
    let file = create(disk, &folder.join("reads_and_writes"), lane).await;
    assert_eq!(whole(&*file).await, "", "a new file is empty");
    file.write_at(0, vec![bytes("abc"), Bytes::new(), bytes("defg")]).await.expect("written");
    assert_eq!(whole(&*file).await, "abcdefg", "chunks follow one another");
    file.write_at(2, vec![bytes("XY")]).await.expect("written");
    assert_eq!(
        file.read_at(1, 4).await.expect("read"),
        "bXYe",
        "a write replaces what is there, and nothing else"
    );
    assert_eq!(file.read_at(5, 100).await.expect("read"), "fg", "a read ends with the file");
    assert_eq!(file.read_at(7, 1).await.expect("read"), "", "nothing is read at the end");
    assert_eq!(file.read_at(1_000_000, 1).await.expect("read"), "", "nothing is read beyond the end");
    assert_eq!(file.read_at(0, 0).await.expect("read"), "", "nothing is read where nothing is asked for");
    file.write_at(9, vec![bytes("z")]).await.expect("written");
    assert_eq!(whole(&*file).await, "abXYefg\0\0z", "a gap reads as zeros");
    file.write_at(20, vec![Bytes::new()]).await.expect("written");
    assert_eq!(file.len().await.expect("length"), 10, "a write of nothing leaves the length");
    file.push_out(0, 10);
    file.sync_data().await.expect("synced");
    assert_eq!(whole(&*file).await, "abXYefg\0\0z", "a sync changes nothing");
    let many: Vec<Bytes> = (0..3_000).map(|n| bytes(&format!("{n:04}"))).collect();
    file.write_at(0, many.clone()).await.expect("written");
    assert_eq!(
        file.read_at(0, 12_000).await.expect("read"),
        many.concat(),
        "thousands of chunks are written in order"
    );
}

async fn lengths(disk: &dyn Disk, folder: &Path, lane: Lane) {
    let file = create(disk, &folder.join("lengths"), lane).await;
    file.write_at(0, vec![bytes("abcdef")]).await.expect("written");
    file.allocate(9).await.expect("allocated");
    assert_eq!(whole(&*file).await, "abcdef\0\0\0", "allocated bytes are zero and part of the file");
    file.allocate(3).await.expect("allocated");
    assert_eq!(file.len().await.expect("length"), 9, "allocating never cuts");
    file.set_len(4).await.expect("cut");
    assert_eq!(whole(&*file).await, "abcd", "a cut file ends there");
    file.set_len(6).await.expect("extended");
    assert_eq!(whole(&*file).await, "abcd\0\0", "what was cut away does not come back");
    file.set_len(0).await.expect("cut");
    file.allocate(0).await.expect("allocated");
    assert_eq!(file.len().await.expect("length"), 0);
}

async fn open_modes(disk: &dyn Disk, folder: &Path, lane: Lane) {
    let path = folder.join("open_modes");
    for mode in [OpenMode::Read, OpenMode::ReadWrite] {
        assert_eq!(kind(disk.open(&path, mode, lane).await), io::ErrorKind::NotFound, "{mode:?}");
    }
    create(disk, &path, lane).await.write_at(0, vec![bytes("abc")]).await.expect("written");
    assert_eq!(kind(disk.open(&path, OpenMode::CreateNew, lane).await), io::ErrorKind::AlreadyExists);
    let read = disk.open(&path, OpenMode::Read, lane).await.expect("an existing file is opened");
    assert_eq!(whole(&*read).await, "abc");
    assert!(read.write_at(0, vec![bytes("x")]).await.is_err(), "a file opened for reading is not written");
    assert!(read.set_len(0).await.is_err(), "a file opened for reading is not cut");
    let write = disk.open(&path, OpenMode::ReadWrite, lane).await.expect("an existing file is opened");
    write.write_at(3, vec![bytes("d")]).await.expect("written");
    assert_eq!(whole(&*read).await, "abcd", "two handles are one file");
    let emptied =
        disk.open(&path, OpenMode::CreateOrTruncate, lane).await.expect("an existing file is emptied");
    assert_eq!((whole(&*emptied).await, whole(&*read).await), (bytes(""), bytes("")));
    assert_eq!(
        kind(disk.open(&folder.join("absent/file"), OpenMode::CreateNew, lane).await),
        io::ErrorKind::NotFound,
        "a file needs its directory"
    );
}

async fn handles_outlive_names(disk: &dyn Disk, folder: &Path, lane: Lane) {
    let (path, moved) = (folder.join("named"), folder.join("moved"));
    let file = create(disk, &path, lane).await;
    file.write_at(0, vec![bytes("abc")]).await.expect("written");
    disk.rename(&path, &moved).await.expect("renamed");
    file.write_at(3, vec![bytes("def")]).await.expect("a renamed file is written");
    let again = disk.open(&moved, OpenMode::Read, lane).await.expect("opened by its new name");
    assert_eq!(whole(&*again).await, "abcdef");
    disk.remove_file(&moved).await.expect("removed");
    assert_eq!(whole(&*file).await, "abcdef", "a removed file is read as long as it is open");
    file.sync_data().await.expect("a removed file is synced");
    let next = create(disk, &moved, lane).await;
    assert_eq!((whole(&*next).await, whole(&*file).await), (bytes(""), bytes("abcdef")), "its name is free");
}

/// The journal lane keeps the order of submission without anybody awaiting, and finishes what nobody waits for.
async fn journal_order(disk: &dyn Disk, root: &Path) {
    let file = create(disk, &root.join("journal_order"), Lane::Journal).await;
    for n in 0..100 {
        drop(file.write_at(0, vec![bytes(&format!("{n:03}")), bytes("tail")]));
        drop(file.set_len(3));
    }
    file.sync_data().await.expect("synced");
    assert_eq!(whole(&*file).await, "099", "the last write came last, and its cut after it");
    let (write, sync) = (file.write_at(3, vec![bytes("!")]), file.sync_data());
    sync.await.expect("synced");
    assert_eq!(whole(&*file).await, "099!", "a sync ends after the writes that were submitted before it");
    write.await.expect("written");
}

async fn directories(disk: &dyn Disk, root: &Path) {
    let folder = root.join("directories");
    let deep = folder.join("b/deep/er");
    disk.create_dir_all(&deep).await.expect("made");
    disk.create_dir_all(&deep).await.expect("making what is there is no error");
    create(disk, &folder.join("c"), Lane::Background)
        .await
        .write_at(0, vec![bytes("abc")])
        .await
        .expect("written");
    create(disk, &folder.join("a"), Lane::Background).await;
    for path in [&folder, &deep, root] {
        disk.sync_dir(path).await.expect("synced");
    }
    let entry = |name: &str, is_dir, length| DirEntry { name: name.to_owned(), is_dir, length };
    let expected = [entry("a", false, 0), entry("b", true, 0), entry("c", false, 3)];
    assert_eq!(disk.list_dir(&folder).await.expect("listed"), expected, "names are sorted");
    assert_eq!(disk.list_dir(&deep).await.expect("listed"), []);
    assert_eq!(kind(disk.list_dir(&folder.join("absent")).await), io::ErrorKind::NotFound);
    assert_eq!(kind(disk.sync_dir(&folder.join("absent")).await), io::ErrorKind::NotFound);
    assert!(disk.create_dir_all(&folder.join("a/below")).await.is_err(), "a file is no directory");
    assert!(
        disk.open(&deep, OpenMode::CreateOrTruncate, Lane::Read).await.is_err(),
        "a directory is no file"
    );
    assert!(disk.remove_file(&deep).await.is_err(), "a directory is not removed as a file");
    disk.remove_dir_all(&folder).await.expect("removed with everything in it");
    assert_eq!(kind(disk.list_dir(&folder).await), io::ErrorKind::NotFound);
    disk.remove_dir_all(&folder).await.expect("absence is success");
}

async fn renames_and_removals(disk: &dyn Disk, root: &Path) {
    let folder = root.join("renames");
    disk.create_dir_all(&folder.join("full")).await.expect("made");
    let (old, new) = (folder.join("old"), folder.join("new"));
    create(disk, &old, Lane::Background).await.write_at(0, vec![bytes("old")]).await.expect("written");
    create(disk, &new, Lane::Background).await.write_at(0, vec![bytes("new")]).await.expect("written");
    disk.rename(&old, &new).await.expect("renamed over what was there");
    let file = disk.open(&new, OpenMode::Read, Lane::Read).await.expect("opened");
    assert_eq!(whole(&*file).await, "old");
    assert_eq!(kind(disk.rename(&old, &new).await), io::ErrorKind::NotFound, "the old name is gone");
    assert_eq!(kind(disk.remove_file(&old).await), io::ErrorKind::NotFound);
    disk.rename(&new, &folder.join("full/file")).await.expect("renamed into another directory");
    disk.rename(&folder.join("full"), &folder.join("moved"))
        .await
        .expect("a directory moves with what is in it");
    let entry = DirEntry { name: "file".to_owned(), is_dir: false, length: 3 };
    assert_eq!(disk.list_dir(&folder.join("moved")).await.expect("listed"), [entry]);
    disk.remove_file(&folder.join("moved/file")).await.expect("removed");
    assert_eq!(disk.list_dir(&folder.join("moved")).await.expect("listed"), []);
}

async fn space(disk: &dyn Disk, root: &Path) {
    let space = disk.space(root).await.expect("the file system answers");
    assert!(0 < space.free && space.free <= space.total, "{space:?}");
}
