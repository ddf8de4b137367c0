//! The folders of the cgroups (version 1 and 2) that this process is in.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the cgroup of this process and of all groups around it in which `controller`, such as `memory`, may have limits. Each
/// comes with the caller's value for its version, 1 or 2.
pub(crate) fn cgroup_folders<T: Copy>(root: &Path, controller: &str, versions: [T; 2]) -> Vec<(PathBuf, T)> {
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    cgroups.lines().flat_map(|line| folders(root, line, controller, versions)).collect()
}

/// The folders that a line of `/proc/self/cgroup` names, if the line is for `controller`; else none.
fn folders<T: Copy>(root: &Path, line: &str, controller: &str, [one, two]: [T; 2]) -> Vec<(PathBuf, T)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (mount, of_version) = match controllers {
        "" => (root.join("sys/fs/cgroup"), two),
        some if some.split(',').any(|each| each == controller) => (root.join("sys/fs/cgroup").join(controller), one),
        _ => return Vec::new(),
    };
    let path = Path::new(path.trim_start_matches('/'));
    path.ancestors().map(|path| (mount.join(path), of_version)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A folder of files in the place of `/`, which is removed at the end.
    pub(crate) struct Root(pub(crate) PathBuf);

    impl Root {
        pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("forebay-cgroup-{name}-{}", std::process::id()));
            for (file, text) in files {
                let file = root.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_folders_are_those_of_the_group_and_of_all_groups_around_it() {
        let root = Root::new("folders", &[("proc/self/cgroup", "5:cpu,cpuacct:/a\n7:memory:/b\nnonsense\n0::/c/d\n")]);
        let found = cgroup_folders(&root.0, "cpu", [1, 2]);
        let at = |path: &str| root.0.join("sys/fs/cgroup").join(path);
        let expected = [(at("cpu/a"), 1), (at("cpu/"), 1), (at("c/d"), 2), (at("c"), 2), (at(""), 2)];
        assert_eq!(found, expected);
    }
}
