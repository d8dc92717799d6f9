//! Files of kernels' times: text, a line for each read.
//!
//! ```text
//! weightstream kernel times 1
//! program 3f6c...        the 128 bits of the program's build id
//! device NVIDIA H200     where they were measured
//! # probe, ns of kernels after its read, ns after the end of its lease, weight
//! 0 10320 0 layers.0.q.weight
//! ```

use super::{malformed, BuildId};
use crate::error::{Error, Result};
use crate::schedule::{Event, KernelTimes, ProbeId};
use std::fmt::Write;

const FIRST: &str = "weightstream kernel times 1";

/// No pass takes as long: a bound for sums.
const LONGEST: u64 = 1 << 50;

/// What a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// How long kernels ran.
    pub times: KernelTimes,
    /// On which device.
    pub device: String,
}

/// The text of a file. `fqns` are the weights' names, by probe.
pub fn render<'a>(
    times: &KernelTimes,
    program: &BuildId,
    device: &str,
    fqns: impl Iterator<Item = &'a str>,
) -> String {
    let mut text = format!(
        "{FIRST}\nprogram {program}\ndevice {device}\n# probe, ns of kernels after its read, ns after the end of its lease, weight\n"
    );
    for ((id, [read, end]), fqn) in times.reads().zip(fqns) {
        let _ = writeln!(text, "{id} {read} {end} {fqn}");
    }
    text
}

/// What a file of this name and these bytes says. It has to be of the program with this build id and so
/// many probes.
pub fn parse(file: &str, bytes: &[u8], program: &BuildId, probes: usize) -> Result<Measured> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        malformed(
            file,
            error.valid_up_to(),
            "this is no text, and no file of kernels' times",
        )
    })?;
    let mut lines = Lines::new(file, text);
    if lines.next() != Some(FIRST) {
        return Err(lines.wrong(format!("the first line is not '{FIRST}'")));
    }
    let found = lines.next().and_then(|line| line.strip_prefix("program "));
    let Some(found) = found else {
        return Err(lines.wrong("there is no 'program' with its build id".to_owned()));
    };
    if found != program.to_string() {
        return Err(Error::Mismatch {
            name: file.to_owned(),
            fact: "build id",
            expected: format!("{program} (program)"),
            found: format!("{found} (kernels' times): they are of another export; delete the file to have kernels timed"),
        });
    }
    let device = lines.next().and_then(|line| line.strip_prefix("device "));
    let Some(device) = device.map(str::to_owned) else {
        return Err(lines.wrong("there is no 'device'".to_owned()));
    };
    let mut times = KernelTimes::new(probes);
    let mut next: ProbeId = 0;
    while let Some(line) = lines.next() {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let mut numbers = line.split(' ').map(|word| word.parse::<u64>().ok());
        let mut number = || numbers.next().flatten().filter(|&number| number <= LONGEST);
        let (Some(id), Some(read), Some(end)) = (number(), number(), number()) else {
            return Err(lines.wrong(format!("'{line}' does not begin with three numbers")));
        };
        if id != u64::from(next) || next as usize >= probes {
            return Err(lines.wrong(format!("probe {id} where {next} of {probes} is expected")));
        }
        times.add(Event::Probe(next), read);
        times.add(Event::Release(next), end);
        next += 1;
    }
    match next as usize == probes {
        true => Ok(Measured { times, device }),
        false => Err(lines.wrong(format!("{next} of {probes} probes, and then the end"))),
    }
}

/// Lines, and how far they were read.
struct Lines<'a> {
    file: &'a str,
    rest: std::str::Lines<'a>,
    number: u64,
    offset: u64,
    length: u64,
}

impl<'a> Lines<'a> {
    fn new(file: &'a str, text: &'a str) -> Self {
        Lines {
            file,
            rest: text.lines(),
            number: 0,
            offset: 0,
            length: 0,
        }
    }

    fn next(&mut self) -> Option<&'a str> {
        let line = self.rest.next();
        self.number += 1;
        self.offset += self.length;
        self.length = line.map_or(0, |line| line.len() as u64 + 1);
        line
    }

    /// Of the line that was read last.
    fn wrong(&self, what: String) -> Error {
        let what = format!(
            "line {}: {what}; delete the file to have kernels timed",
            self.number
        );
        malformed(self.file, self.offset, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: BuildId = BuildId([7; 16]);

    fn times(reads: &[(u64, u64)]) -> KernelTimes {
        let mut times = KernelTimes::new(reads.len());
        for (id, &(read, end)) in (0..).zip(reads) {
            times.add(Event::Probe(id), read);
            times.add(Event::Release(id), end);
        }
        times
    }

    fn text() -> String {
        let names = ["a", "b.c d", "a"];
        render(
            &times(&[(5, 0), (7, 1), (0, 2)]),
            &ID,
            "NVIDIA X",
            names.into_iter(),
        )
    }

    fn refusal(text: &str) -> String {
        parse("k.txt", text.as_bytes(), &ID, 3)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_is_not_right_is_named_with_its_line() {
        let right = parse("k.txt", text().as_bytes(), &ID, 3).unwrap();
        assert_eq!((right.times.total(), &right.device[..]), (15, "NVIDIA X"));
        let cases = [
            (String::new(), "line 1: the first line is not"),
            (text().replace("times 1", "times 2"), "line 1"),
            (
                text().replace("program ", "programme "),
                "line 2: there is no 'program'",
            ),
            (
                text().replace("device ", ""),
                "line 3: there is no 'device'",
            ),
            (
                text().replace("\n1 7 1", "\n1 7 x"),
                "line 6: '1 7 x b.c d' does not begin with three numbers",
            ),
            (text().replace("\n1 7 1", "\n1 -7 1"), "line 6"),
            (
                text().replace("\n1 7 1", "\n1 7 9999999999999999"),
                "line 6",
            ),
            (
                text().replace("\n1 7 1", "\n2 7 1"),
                "line 6: probe 2 where 1 of 3 is expected",
            ),
            (
                text() + "3 1 1 d\n",
                "line 8: probe 3 where 3 of 3 is expected",
            ),
            (
                text().replace("2 0 2 a\n", ""),
                "line 7: 2 of 3 probes, and then the end",
            ),
        ];
        for (text, expected) in cases {
            let found = refusal(&text);
            assert!(
                found.contains("k.txt") && found.contains(expected),
                "{found}"
            );
        }
        let found = parse("k.txt", text().as_bytes(), &BuildId([8; 16]), 3).unwrap_err();
        let found = found.to_string();
        assert!(
            found.contains("k.txt") && found.contains("0707") && found.contains("0808"),
            "{found}"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(reads in prop::collection::vec((0..=LONGEST, 0..=LONGEST), 0..20)) {
            let names = vec!["w.0 \u{e9}"; reads.len()];
            let text = render(&times(&reads), &ID, "a device", names.into_iter());
            prop_assert_eq!(parse("f", text.as_bytes(), &ID, reads.len()).unwrap().times, times(&reads));
        }

        #[test]
        fn no_text_is_a_panic(text in "(weightstream kernel times 1\nprogram 07070707070707070707070707070707\ndevice x\n)?[0-9 a\n#-]{0,40}") {
            let _ = parse("f", text.as_bytes(), &ID, 2);
        }
    }
}
