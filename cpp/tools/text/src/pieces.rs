//! The text of tokens as they come.

use crate::text::Text;

/// The text of an answer, as far as it is known.
pub struct Pieces {
    stops: Vec<String>,
    tokens: Vec<u32>,
    prefix: String,
    prefix_index: usize,
    held: String,
    stopped: bool,
}

impl Pieces {
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Pieces {
            stops,
            tokens: Vec::new(),
            prefix: String::new(),
            prefix_index: 0,
            held: String::new(),
            stopped: false,
        }
    }

    pub fn take(&mut self, text: &Text, token: u32) -> Result<String, String> {
        let piece = text.step(
            token,
            &mut self.tokens,
            &mut self.prefix,
            &mut self.prefix_index,
        )?;
        Ok(piece.map_or_else(String::new, |piece| self.certain(&piece)))
    }

    pub fn stopped(&self) -> bool {
        self.stopped
    }

    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// What is certain once `piece` has come: up to a stop, or to what may be the beginning of one.
    fn certain(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        if let Some(at) = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop))
            .min()
        {
            self.stopped = true;
            self.held.truncate(at);
            return self.rest();
        }
        let begins = |stop: &String| {
            let sizes = stop.char_indices().map(|(at, _)| at).filter(|&at| at > 0);
            sizes
                .filter(|&size| self.held.ends_with(&stop[..size]))
                .max()
                .unwrap_or(0)
        };
        let kept = self.stops.iter().map(begins).max().unwrap_or(0);
        let later = self.held.split_off(self.held.len() - kept);
        std::mem::replace(&mut self.held, later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&str], stops: &[&str]) -> Vec<String> {
        let mut found = Pieces::new(stops.iter().map(|&stop| stop.to_owned()).collect());
        let mut shown = Vec::new();
        for piece in pieces {
            shown.push(found.certain(piece));
            if found.stopped {
                break;
            }
        }
        shown.push(found.rest());
        shown.retain(|text| !text.is_empty());
        shown
    }

    #[test]
    fn what_may_be_the_beginning_of_a_stop_is_held_back() {
        assert_eq!(shown(&["ab", "c"], &[]), ["ab", "c"]);
        assert_eq!(shown(&["ab", "cd", "ef"], &["cd"]), ["ab"]);
        assert_eq!(shown(&["ab", "c", "x"], &["cd"]), ["ab", "cx"]);
        assert_eq!(shown(&["a<", "en", "d>b"], &["<end>"]), ["a"]);
        assert_eq!(shown(&["a<e"], &["<end>", ""]), ["a", "<e"]);
        assert_eq!(shown(&["é", "ü!"], &["üx", "é!"]), ["éü!"]);
        assert!(shown(&["<end>"], &["<end>"]).is_empty());
    }
}
