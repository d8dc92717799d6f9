//! Budgets as people write them, and bytes as they read them.

use std::str::FromStr;

/// A budget on the command line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BudgetArgument {
    /// The least one.
    Floor,
    Bytes(u64),
    /// Of all constants.
    Percent(f64),
}

impl FromStr for BudgetArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<BudgetArgument, String> {
        let refused = || {
            format!("'{text}' is no budget: expected bytes, a number with MB or GB (of 1,048,576 and 1,073,741,824 bytes; MiB and GiB are the same), a percentage of all constants, or 'floor'")
        };
        if text == "floor" {
            return Ok(BudgetArgument::Floor);
        }
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = text.split_at(split.unwrap_or(text.len()));
        let scale: u64 = match unit.trim() {
            "" | "B" => 1,
            "MB" | "MiB" => 1 << 20,
            "GB" | "GiB" => 1 << 30,
            "%" => {
                let share: f64 = number.parse().map_err(|_| refused())?;
                return Ok(BudgetArgument::Percent(share));
            }
            _ => return Err(refused()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole
                .checked_mul(scale)
                .map(BudgetArgument::Bytes)
                .ok_or_else(refused);
        }
        let parts: f64 = number.parse().map_err(|_| refused())?;
        match scale {
            // Half a byte is a slip.
            1 => Err(refused()),
            _ => Ok(BudgetArgument::Bytes((parts * scale as f64) as u64)),
        }
    }
}

impl BudgetArgument {
    /// In bytes. `floor` and `everything` are the program's.
    pub fn bytes(self, floor: u64, everything: u64) -> u64 {
        match self {
            BudgetArgument::Floor => floor,
            BudgetArgument::Bytes(bytes) => bytes,
            BudgetArgument::Percent(share) => (everything as f64 * share / 100.0) as u64,
        }
    }
}

/// `12,345,678`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, tail) = digits.split_at(first);
    let mut groups: Vec<&str> = if head.is_empty() { vec![] } else { vec![head] };
    groups.extend((0..tail.len()).step_by(3).map(|at| &tail[at..at + 3]));
    groups.join(",")
}

/// `12,345,678 bytes (11.8 MB)`, of 1,048,576 bytes; of less there are only the bytes.
pub fn with_megabytes(bytes: u64) -> String {
    match bytes < 1 << 20 {
        true => format!("{} bytes", grouped(bytes)),
        false => format!(
            "{} bytes ({:.1} MB)",
            grouped(bytes),
            bytes as f64 / f64::from(1 << 20)
        ),
    }
}
