//! The paths that items are packed under, such that unpacking can write them.

use std::collections::{HashMap, HashSet};
use std::io;

use crate::source::Source;
use crate::source::catalog::{Kind, file_name, kind};

/// Longest name of a file or folder that the usual file systems take, in bytes.
const MAX_NAME: usize = 255;

/// A path for each item, all different: [`Source::relative_path`] where a file of that name can be written below an empty folder
/// and be read again as an image of its class; else the class, the item's number and the extension of its content.
///
/// Not kept are paths with `..`, NUL or empty parts, parts longer than 255 bytes or beginning with a dot, all but the first of
/// equal paths, paths that are the folder of another, names without an image's extension, and folders that another class has.
/// `start` gives the first bytes of an item.
///
/// # Errors
/// Those of `start`.
pub(super) fn packed_paths(source: &dyn Source, mut start: impl FnMut(usize) -> io::Result<Vec<u8>>) -> io::Result<Vec<Vec<u8>>> {
    let mut paths: Vec<Vec<u8>> = (0..source.len()).map(|item| source.relative_path(item)).collect();
    let mut unfit = Vec::new();
    let mut taken: HashSet<Vec<u8>> = HashSet::new();
    let renamed = {
        let mut seen: HashSet<&[u8]> = HashSet::with_capacity(paths.len());
        let mut folders: HashSet<&[u8]> = HashSet::new();
        let mut owners: HashMap<&[u8], usize> = HashMap::new();
        for path in paths.iter().filter(|path| is_writable(path)) {
            let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/');
            folders.extend(slashes.map(|(at, _)| &path[..at]));
        }
        for (item, path) in paths.iter().enumerate() {
            if let Some(class) = class_folder(path) {
                owners.entry(class).or_insert_with(|| source.label(item));
            }
        }
        for (item, path) in paths.iter().enumerate() {
            let fits = is_writable(path)
                && !folders.contains(path.as_slice())
                && class_folder(path).and_then(|class| owners.get(class)) == Some(&source.label(item))
                && seen.insert(path);
            if !fits {
                unfit.push(item);
            }
        }
        // What a new path must not be.
        if !unfit.is_empty() {
            taken.extend(seen.iter().chain(&folders).map(|path| path.to_vec()));
            taken.extend(owners.keys().map(|class| class.to_vec()));
        }
        let mut class_folders: HashMap<usize, Vec<u8>> = HashMap::new();
        let mut of_class: HashMap<usize, &[u8]> = HashMap::new();
        // A class may have several folders, as labels given beside the images allow: the first by name, whatever the map's order.
        for (class, label) in &owners {
            let folder = of_class.entry(*label).or_insert(class);
            *folder = (*folder).min(class);
        }
        let mut renamed = Vec::with_capacity(unfit.len());
        for &item in &unfit {
            let label = source.label(item);
            let folder = class_folders.entry(label).or_insert_with(|| match of_class.get(&label) {
                Some(class) => class.to_vec(),
                None => free(&taken, |again| format!("class-{label}{again}").into_bytes()),
            });
            let extension = extension(&start(item)?);
            let path = free(&taken, |again| [folder, format!("/{item:08}{again}.{extension}").as_bytes()].concat());
            taken.insert(path.clone());
            renamed.push(path);
        }
        renamed
    };
    for (item, path) in unfit.into_iter().zip(renamed) {
        paths[item] = path;
    }
    Ok(paths)
}

/// The first of some names that is not taken.
fn free(taken: &HashSet<Vec<u8>>, name: impl Fn(&str) -> Vec<u8>) -> Vec<u8> {
    let mut path = name("");
    let mut again = 1;
    while taken.contains(&path) {
        again += 1;
        path = name(&format!("-{again}"));
    }
    path
}

/// The first part of a path, if it can be the folder of a class.
fn class_folder(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().position(|&b| b == b'/')?;
    is_name(&path[..slash]).then_some(&path[..slash])
}

fn is_name(part: &[u8]) -> bool {
    !part.is_empty() && part.len() <= MAX_NAME && part[0] != b'.' && !part.contains(&0)
}

fn is_writable(path: &[u8]) -> bool {
    path.contains(&b'/') && path.split(|&b| b == b'/').all(is_name) && kind(file_name(path)) == Kind::Image
}

fn extension(start: &[u8]) -> &'static str {
    match () {
        () if start.starts_with(b"\xff\xd8") => "jpg",
        () if start.starts_with(b"\x89PNG") => "png",
        () if start.starts_with(b"RIFF") => "webp",
        () => "bin",
    }
}
