//! The tables of options and counters, for people and as `docs/options.md` and `docs/counters.md`.

use crate::config::{Row, Values, ROWS};
use crate::counters::COUNTERS;
use std::fmt::Write;

#[derive(clap::Args)]
pub struct ReferenceArguments {
    /// The page of the documentation
    #[arg(long)]
    markdown: bool,
}

pub fn options(arguments: &ReferenceArguments) -> String {
    match arguments.markdown {
        true => options_page(),
        false => ROWS.iter().map(option_text).collect(),
    }
}

pub fn counters(arguments: &ReferenceArguments) -> String {
    if arguments.markdown {
        return counters_page();
    }
    let mut text = String::new();
    for counter in COUNTERS {
        let _ = writeln!(text, "{} ({})", counter.name, counter.kind.name());
        paragraph(&mut text, counter.meaning);
    }
    text
}

fn option_text(row: &Row) -> String {
    let mut text = format!("{}\n", row.key);
    let default = match row.default {
        "" => "none",
        value => value,
    };
    let _ = writeln!(text, "    takes:       {}", row.values.accepted());
    let _ = writeln!(text, "    default:     {default}");
    let _ = writeln!(text, "    for:         {}", row.reach.name());
    let _ = writeln!(text, "    environment: {}", row.variable());
    paragraph(&mut text, row.meaning);
    text
}

/// Writes lines of at most 100 columns, and an empty one.
fn paragraph(text: &mut String, words: &str) {
    const COLUMNS: usize = 100;
    let mut line = String::new();
    for word in words.split_whitespace() {
        if 4 + line.len() + 1 + word.len() > COLUMNS {
            let _ = writeln!(text, "   {line}");
            line.clear();
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "   {line}\n");
}

/// What both pages begin with, after their titles.
const GENERATED: &str = "`scripts/generate` writes this page";

fn options_page() -> String {
    let mut page = format!(
        "# Options of a load\n\n\
         {GENERATED} from the table that a load checks, `src/config/table.rs`.\n\
         `weightstream options` prints the same table.\n\n\
         - An unknown key, a wrong value, and an option that can have no effect are errors.\n\
         - The first of these that gives an option decides: the load; `set_option`; the\n\
         \x20 environment; the program. From the last three, an option that cannot apply to a\n\
         \x20 program is left out, and a log line says so.\n\
         - Strings have at most 254 characters, since ExecuTorch cuts longer ones.\n\n\
         | option | takes | default | for | environment variable | meaning |\n\
         |---|---|---|---|---|---|\n"
    );
    for row in &ROWS {
        let default = match row.default {
            "" => String::new(),
            value => format!("`{value}`"),
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | {default} | {} | `{}` | {} |",
            row.key,
            in_code(&accepted(row)),
            row.reach.name(),
            row.variable(),
            in_code(row.meaning)
        );
    }
    page
}

/// The words alone where there are only words.
fn accepted(row: &Row) -> String {
    match row.values {
        Values::Words(all) => {
            let quoted: Vec<_> = all().iter().map(|word| format!("'{word}'")).collect();
            quoted.join(", ")
        }
        _ => row.values.accepted(),
    }
}

/// Quoted words as Markdown's code.
fn in_code(text: &str) -> String {
    let mut code = String::new();
    for (at, part) in text.split(' ').enumerate() {
        let bare = part.trim_end_matches(['.', ',', ';', ':']);
        let end = &part[bare.len()..];
        let inner = bare
            .strip_prefix('\'')
            .and_then(|word| word.strip_suffix('\''));
        code.push_str(if at == 0 { "" } else { " " });
        match inner {
            Some(word) => {
                let _ = write!(code, "`{word}`{end}");
            }
            None if bare.starts_with("weight_offload_") => {
                let _ = write!(code, "`{bare}`{end}");
            }
            None => code.push_str(part),
        }
    }
    code
}

fn counters_page() -> String {
    let mut page = format!(
        "# Counters\n\n\
         {GENERATED} from `src/counters.rs`; `weightstream counters` prints the same.\n\
         C (`ws_stats`), C++ (`Module::stats`), Python (`stats()`) and\n\
         `weightstream-run --json` give these names.\n\n\
         All count since load, and sizes are in bytes.\n\n\
         | counter | of | meaning |\n|---|---|---|\n"
    );
    for counter in COUNTERS {
        let (name, kind) = (counter.name, counter.kind.name());
        let _ = writeln!(page, "| `{name}` | {kind} | {} |", counter.meaning);
    }
    page
}
