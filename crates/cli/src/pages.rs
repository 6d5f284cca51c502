//! What is made from the command line's own table: completion scripts of shells, and manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

/// Print the completion script of a shell
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Which shell
    shell: Shell,
}

/// Write the manual pages, one for each command, into a folder
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Is made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the script of the whole program to standard output.
pub fn completion(args: CompletionArgs, mut program: Command) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    env::print(format_args!("{}", String::from_utf8_lossy(&script)))?;
    Ok(())
}

/// Writes `gantry.1`, `gantry-broker.1`, `gantry-admin-topicList.1` and so on.
pub fn man(args: ManArgs, program: Command) -> anyhow::Result<()> {
    let folder = args.folder;
    let failed = || format!("cannot write manual pages into {}", folder.display());
    std::fs::create_dir_all(&folder).with_context(failed)?;
    clap_mangen::generate_to(program, &folder).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_and_a_completion_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let program = || Command::new("gantry").about("A broker").subcommand(Command::new("serve").about("Serves"));
        man(ManArgs { folder: folder.path().join("man1") }, program()).unwrap();
        let page = std::fs::read_to_string(folder.path().join("man1/gantry-serve.1")).unwrap();
        assert!(page.contains("Serves") && page.starts_with(".ie"), "{page}");
        assert!(std::fs::read_to_string(folder.path().join("man1/gantry.1")).unwrap().contains("A broker"));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let refused = man(ManArgs { folder: file.clone() }, program()).unwrap_err();
        assert!(format!("{refused:#}").contains(&file.display().to_string()), "{refused:#}");
    }
}
