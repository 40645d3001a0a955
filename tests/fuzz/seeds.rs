//! Writes what fuzzing begins with. In: a folder. Out: in it a folder for each target, with a file for each of its seeds.
//! Guarantee: other files there stay.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: seeds FOLDER");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("seeds: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> std::io::Result<()> {
    for target in &crossmesh_fuzz::TARGETS {
        let own = folder.join(target.name);
        std::fs::create_dir_all(&own)?;
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            std::fs::write(own.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
