//! The imports of a crate: which of its modules names which other one, read from the source.
//!
//! A name counts wherever it stands: in `use`, as a full path in code, in the tokens of a macro, and behind a re-export, which is
//! followed to the module that has the thing. Modules under `#[cfg(test)]` are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, UseTree, VisRestricted, Visibility};

/// Re-exports lead to re-exports; more than this in a row are a circle of them.
const HOPS_MAX: usize = 8;

/// The source cannot be read as Rust.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file of a module that is declared.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// What stands in it.
    #[error("{0}: {1}")]
    Syntax(PathBuf, syn::Error),
}

/// The modules of a crate by their paths (`topics::mapping`; empty: the root), each with the modules that it names.
pub type Imports = BTreeMap<String, BTreeSet<String>>;

/// Reads the crate whose root file (`src/lib.rs` or `src/main.rs`) this is.
pub fn of_crate(root: &Path) -> Result<Imports, ImportError> {
    let mut modules = BTreeMap::new();
    read(root, root.parent().unwrap_or(root), &[], &mut modules)?;
    let all = modules.keys().map(|path| (path.join("::"), path)).collect::<Vec<_>>();
    Ok(all.into_iter().map(|(name, path)| (name, named(path, &modules))).collect())
}

type Names = Vec<String>;

/// What stands in a module.
#[derive(Default)]
struct Module {
    /// Paths that are named, as they are written.
    paths: BTreeSet<Names>,
    /// What it hands on: a name, and the path behind it. `*`: all that the path has.
    handed_on: Vec<(String, Names)>,
}

/// Reads a file, and those of the modules that it declares. `folder` is where these lie.
fn read(file: &Path, folder: &Path, path: &[String], modules: &mut BTreeMap<Names, Module>) -> Result<(), ImportError> {
    let text = std::fs::read_to_string(file).map_err(|error| ImportError::File(file.to_owned(), error))?;
    let parsed = syn::parse_file(&text).map_err(|error| ImportError::Syntax(file.to_owned(), error))?;
    read_items(&parsed.items, folder, path, modules)
}

fn read_items(
    items: &[Item],
    folder: &Path,
    path: &[String],
    modules: &mut BTreeMap<Names, Module>,
) -> Result<(), ImportError> {
    let mut module = Reader::default();
    for item in items {
        let Item::Mod(inner) = item else {
            module.visit_item(item);
            continue;
        };
        if is_for_tests(&inner.attrs) {
            continue;
        }
        let name = inner.ident.to_string();
        let below = [path, std::slice::from_ref(&name)].concat();
        let folder = folder.join(&name);
        if let Some((_, items)) = &inner.content {
            read_items(items, &folder, &below, modules)?;
            continue;
        }
        let beside = folder.with_extension("rs");
        let file = if beside.exists() { beside } else { folder.join("mod.rs") };
        read(&file, &folder, &below, modules)?;
    }
    modules.insert(path.to_vec(), module.0);
    Ok(())
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.path().is_ident("cfg").then(|| attribute.meta.require_list().ok()).flatten();
        list.is_some_and(|list| list.tokens.to_string() == "test")
    })
}

#[derive(Default)]
struct Reader(Module);

impl Reader {
    fn tree(&mut self, before: &[String], tree: &UseTree, is_handed_on: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let (name, path) = match tree {
            UseTree::Path(path) => return self.tree(&with(&path.ident), &path.tree, is_handed_on),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.tree(before, tree, is_handed_on));
            }
            UseTree::Name(name) if name.ident == "self" => {
                (before.last().cloned().unwrap_or_default(), before.to_vec())
            }
            UseTree::Name(name) => (name.ident.to_string(), with(&name.ident)),
            UseTree::Rename(renamed) => (renamed.rename.to_string(), with(&renamed.ident)),
            UseTree::Glob(_) => ("*".to_owned(), before.to_vec()),
        };
        if is_handed_on {
            self.0.handed_on.push((name, path.clone()));
        }
        self.0.paths.insert(path);
    }

    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Group(group) => {
                    self.end(&mut path);
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.end(&mut path);
                    colons = 0;
                }
            }
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Names) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.0.paths.insert(path);
        }
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item_mod(&mut self, inner: &'a ItemMod) {
        // Modules of the crate are read by `read_items`; what is left are those for tests.
        if !is_for_tests(&inner.attrs) {
            visit::visit_item_mod(self, inner);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.tree(&[], &item.tree, !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_vis_restricted(&mut self, _: &'a VisRestricted) {
        // `pub(crate)` names nobody.
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.0.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'a Macro) {
        self.tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }
}

/// The other modules of the crate that a module names.
fn named(path: &Names, modules: &BTreeMap<Names, Module>) -> BTreeSet<String> {
    let Some(module) = modules.get(path) else { return BTreeSet::new() };
    let found = module.paths.iter().filter_map(|named| whole(path, named, modules));
    let homes = found.map(|named| home(named, modules, HOPS_MAX));
    homes.filter(|home| home != path).map(|home| home.join("::")).collect()
}

/// A path from the root on; none if it leads out of the crate.
fn whole(module: &Names, named: &[String], modules: &BTreeMap<Names, Module>) -> Option<Names> {
    let (first, rest) = named.split_first()?;
    let from = match first.as_str() {
        "crate" => return Some(rest.to_vec()),
        "self" => return Some([module, rest].concat()),
        "super" => {
            let ups = named.iter().take_while(|name| *name == "super").count();
            let above = module.len().checked_sub(ups)?;
            return Some([&module[..above], &named[ups..]].concat());
        }
        _ => [module.as_slice(), std::slice::from_ref(first)].concat(),
    };
    // A module that is declared here; any other first name is a crate, or a thing that a `use` has brought.
    modules.contains_key(&from).then(|| [module.as_slice(), named].concat())
}

/// The module that has what a path names.
fn home(path: Names, modules: &BTreeMap<Names, Module>, hops: usize) -> Names {
    let mut length = path.len();
    while length > 0 && !modules.contains_key(&path[..length]) {
        length -= 1;
    }
    let (at, rest) = path.split_at(length);
    let (Some(module), Some(name)) = (modules.get(at), rest.first()) else { return at.to_vec() };
    let handed_on = module.handed_on.iter().find(|(handed, _)| handed == name);
    let behind = handed_on.and_then(|(_, behind)| whole(&at.to_vec(), behind, modules));
    match behind.filter(|_| hops > 0) {
        Some(behind) => home([&behind, &rest[1..]].concat(), modules, hops - 1),
        None => at.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Imports {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        of_crate(&folder.path().join("lib.rs")).unwrap()
    }

    fn names(imports: &Imports, module: &str) -> Vec<String> {
        imports[module].iter().cloned().collect()
    }

    #[test]
    fn a_module_is_named_by_a_use_by_a_full_path_and_in_a_macro() {
        let imports = of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            (
                "a.rs",
                "use std::fmt; use crate::b::{Thing, self as other}; fn f() { crate::c::go(); println!(\"{}\", crate::d::D); }",
            ),
            ("b.rs", "pub(crate) struct Thing;"),
            ("c.rs", "pub(super) fn go() { super::d::go() }"),
            ("d/mod.rs", "mod e; pub const D: u8 = e::E; pub fn go() {}"),
            ("d/e.rs", "pub const E: u8 = 1;"),
        ]);
        assert_eq!(names(&imports, "a"), ["b", "c", "d"]);
        assert_eq!(names(&imports, "c"), ["d"]);
        assert_eq!(names(&imports, "d"), ["d::e"]);
        assert!(imports[""].is_empty());
    }

    #[test]
    fn a_name_that_is_handed_on_belongs_to_the_module_that_has_it() {
        let imports = of(&[
            ("lib.rs", "mod a; mod b; pub use b::Thing;"),
            ("a.rs", "use crate::Thing; fn f(_: crate::b::Other) {}"),
            ("b/mod.rs", "mod c; pub use c::Thing; pub(crate) use self::c::Inner as Other;"),
            ("b/c.rs", "pub struct Thing; pub struct Inner;"),
        ]);
        assert_eq!(names(&imports, "a"), ["b::c"]);
        assert_eq!(names(&imports, ""), ["b::c"]);
    }

    #[test]
    fn what_tests_name_does_not_count() {
        let imports = of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "#[cfg(test)] use crate::b::B; #[cfg(test)] mod tests { use crate::b; } #[cfg(test)] mod more;"),
            ("b.rs", "pub struct B;"),
        ]);
        assert!(imports["a"].is_empty());
    }
}
