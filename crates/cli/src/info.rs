//! `manyheads info`.

use std::path::PathBuf;

use crate::leave::{Code, SUCCESS};
use manyheads_trainer::config::{self, Config};
use manyheads_trainer::info::Info;
use manyheads_trainer::{Error, Result};

/// Show what a configuration amounts to: every value, layers, parameters, MACs, memory, learning rate, steps.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration (TOML).
    #[arg(required_unless_present = "schema")]
    config: Option<PathBuf>,
    /// Set a key of the configuration, as train.epochs=10; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
    /// Print the JSON schema of configuration files instead, for editors to complete and check them.
    #[arg(long, conflicts_with_all = ["config", "sets", "json"])]
    schema: bool,
}

pub fn run(args: Args) -> Result<Code> {
    if args.schema {
        let schema = serde_json::to_string_pretty(&Config::json_schema()).expect("a schema is plain JSON");
        crate::print(schema)?;
    } else if let Some(path) = &args.config {
        let info = Info::new(&config::load(path, &args.sets)?)?;
        if args.json {
            let json = serde_json::to_string(&info).map_err(|e| Error::Failed(format!("cannot print as JSON: {e}")))?;
            crate::print(json)?;
        } else {
            crate::print(info.to_text().trim_end())?;
        }
    }
    Ok(SUCCESS)
}
