//! Files that are written from the tables of options, counters and shims are up to date. `scripts/generate`
//! writes them.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use weightstream::aoti::shims::names;
use weightstream::config::{Row, Values, ROWS};
use weightstream::counters::{Counter, COUNTERS};

const HEADER: &str = "cpp/include/weightstream/weightstream.h";

/// Compares a file with what it has to be; writes it if asked to.
#[track_caller]
fn settle(file: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("WEIGHTSTREAM_TEST_GENERATE").is_some() {
        return std::fs::write(path, expected).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "{file} is out of date; run scripts/generate"
    );
}

fn page(command: &str) -> String {
    let arguments = [command, "--markdown"].map(OsString::from);
    weightstream::command::run("weightstream", arguments).text
}

/// The text with what is between two lines replaced.
fn with_between(text: &str, begin: &str, end: &str, new: &str) -> String {
    let start = text
        .find(begin)
        .unwrap_or_else(|| panic!("'{begin}' is not in {HEADER}"));
    let start = start + begin.len();
    let stop = text[start..]
        .find(end)
        .unwrap_or_else(|| panic!("'{end}' is not in {HEADER}"));
    format!("{}{new}{}", &text[..start], &text[start + stop..])
}

/// Words in lines of at most 100 columns, each after `indent`.
fn wrapped(words: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in words.split_whitespace() {
        if indent.len() + line.len() + 1 + word.len() > 100 {
            let _ = writeln!(lines, "{indent}{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    format!("{lines}{indent}{line}\n")
}

fn option_comment(row: &Row) -> String {
    let takes = row.values.accepted();
    let default = match row.default {
        "" => String::new(),
        value => format!("; the default is {value}"),
    };
    // What an application in C++ or C gives. Texts that say a number are taken too.
    let kind = match row.values {
        Values::Mb { .. } | Values::Index | Values::Switch | Values::Whole => "int",
        _ => "string",
    };
    let values = format!("{takes}{default}. For {}.", row.reach.name());
    let texts = [values.as_str(), row.meaning].map(|text| wrapped(text, " *       "));
    format!(" *   {} ({kind})\n{}", row.key, texts.concat())
}

fn field(counter: &Counter) -> String {
    let words = format!("{}: {}", counter.kind.name(), counter.meaning);
    let comment = wrapped(&words, "   * ");
    let comment = comment.trim_start().strip_prefix("* ").unwrap_or_default();
    format!(
        "  /* {} */\n  uint64_t {};\n",
        comment.trim_end(),
        counter.name
    )
}

#[test]
fn the_pages_of_options_and_counters_are_up_to_date() {
    settle("docs/options.md", &page("options"));
    settle("docs/counters.md", &page("counters"));
}

/// The export links a trampoline for each function that compiled code may call.
#[test]
fn the_list_of_shims_is_up_to_date() {
    let list = names().join("\n") + "\n";
    settle("python/weightstream/_export/compile/shims.txt", &list);
}

#[test]
fn the_c_header_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(HEADER);
    let text = std::fs::read_to_string(path).unwrap();
    let options: String = ROWS.iter().map(option_comment).collect();
    let begin = "/*\n * One option. From here to the end of the list scripts/generate writes:\n";
    let text = with_between(&text, begin, " * An unknown key,", &options);
    let fields: String = COUNTERS.iter().map(field).collect();
    let begin = "  uint64_t struct_size;\n  /* From here to the end scripts/generate writes. */\n";
    settle(
        HEADER,
        &with_between(&text, begin, "} ws_stats_data;", &fields),
    );
}

#[test]
fn a_page_tells_every_option_and_counter() {
    let (options, counters) = (page("options"), page("counters"));
    for row in &ROWS {
        assert!(
            options.contains(&format!("| `{}` |", row.key)),
            "{}",
            row.key
        );
        assert!(row.meaning.ends_with('.'), "{}", row.key);
    }
    for counter in COUNTERS {
        assert!(
            counters.contains(&format!("| `{}` |", counter.name)),
            "{}",
            counter.name
        );
    }
}
